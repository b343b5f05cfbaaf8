"""Input to the network: batch samplers, augmentation, the loader and its cache of decoded images."""
