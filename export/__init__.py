"""Export: from a training run to one ONNX file, checked against the run."""
