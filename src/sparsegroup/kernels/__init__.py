"""The optimizer step on arrays, one module per backend."""
