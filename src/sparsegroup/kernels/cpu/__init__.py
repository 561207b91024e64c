"""The step on the CPU: Numba compiles it for a rule and threads share its work."""
