"""The backends of a rule, made when the first step needs them: importing the library compiles and loads nothing."""

from sparsegroup.kernels.step import Backend
from sparsegroup.rules import Rule


def backends_of(rule: Rule) -> tuple[Backend, ...]:
    """New backends for one optimizer, the preferred first; the last takes every parameter."""
    from sparsegroup.kernels.cpu.backend import CpuBackend
    from sparsegroup.kernels.eager import EagerBackend
    from sparsegroup.kernels.gpu.backend import GpuBackend

    return GpuBackend(rule), CpuBackend(rule), EagerBackend(rule)
