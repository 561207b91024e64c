"""The step in eager PyTorch: readable, on any device, and the fallback of the others."""
