"""Input pipeline: batch sampler, augmentation, data loader and cache of decoded images."""
