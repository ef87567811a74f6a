"""The project's numbers, each as a ratio against a bare baseline measured in the same run."""
