"""Runs as other tools show them: W&B, MLflow, TensorBoard. What lies in in/ is the truth, and each of them a copy."""
