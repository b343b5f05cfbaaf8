"""Networks: backbones, the feature extractor around them, the embedding model, pretrained weights."""
