"""Callbacks that follow a training: MLflow, TensorBoard, Optuna, and those that a run's settings ask for."""
