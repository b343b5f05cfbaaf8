"""Networks: backbones, feature extractors, the embedding model and pretrained weights."""
