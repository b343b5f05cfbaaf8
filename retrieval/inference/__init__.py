"""ONNX Runtime: settings, sessions on execution providers, sizes of the runs."""
