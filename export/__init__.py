"""Export: turn a training run or a pretrained backbone into one ONNX file, checked against the network."""
