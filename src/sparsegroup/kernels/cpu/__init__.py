"""The step on the CPU: Numba compiles it for a rule and threads share its work."""

from sparsegroup.importing import uncollected

with uncollected():
    import numba as numba
