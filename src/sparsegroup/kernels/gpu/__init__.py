"""The step and the lookup in Triton, for tensors in a GPU's memory."""
