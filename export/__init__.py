"""PyTorch to ONNX, parity, and the ship bundle."""
