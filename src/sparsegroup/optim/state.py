"""One parameter's state on its way through torch's loader: float32 survives low-precision parameters."""

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from sparsegroup.rules import Rule

LAST_STEP = 2.0**53
"""No training has more, and beyond it float64 does not count on."""

TARGET = "target"
"""Entry of a param group that holds the state of a size target, so that every checkpoint of the optimizer has it."""


@dataclass
class TargetState:
    """Progress of a size target, see `SizeTarget`. A mapping in its place was loaded from a state dict."""

    target: float  # share or bytes. A target with another size or other steps restarts
    steps: int | None
    count: int = 0
    begin: float = 1.0  # live share at the first step
    l21: float = 0.0
    rate: float | None = None
    scheduled_rate: float | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any], where: str) -> Self:
        """Return the state in a mapping. ValueError, with `where`: the mapping has other entries or values."""
        if isinstance(content, cls):
            return content
        optional = {"steps", "rate", "scheduled_rate"}
        names = [one.name for one in fields(cls)]
        if not isinstance(content, Mapping) or sorted(content) != sorted(names):
            raise ValueError(f"the state of a size target must have {', '.join(names)}, got {content!r} ({where})")
        for name, value in content.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
            is_whole = name not in ("count", "steps") or isinstance(value, int)
            if not (is_number and is_whole) and not (value is None and name in optional):
                raise ValueError(f"{name} of a size target must be a number >= 0, got {value!r} ({where})")
        return cls(**content)

    @property
    def plain(self) -> dict[str, Any]:
        """Mapping of all attributes, for `of`."""
        return asdict(self)


@dataclass(frozen=True)
class UncastTensor:
    """A state tensor on its way through torch's loader, which would cast it to the parameter's dtype."""

    tensor: Tensor

    def cast(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        """The tensor as state of `parameter`: on its device, in `dtype`, laid out like it."""
        return torch.empty_like(parameter, dtype=dtype).copy_(self.tensor)


def as_count(steps: Tensor | float, device: torch.device | str, *, copy: bool = False) -> Tensor:
    """Return a step count as a 0-d float64 tensor, which is exact up to 2⁵³. Torch's float32 count stops at 2²⁴."""
    if isinstance(steps, Tensor):
        return steps.to(device, torch.float64, copy=copy)
    return torch.tensor(steps, dtype=torch.float64, device=device)


def check_names(entry: Mapping[str, Any], rule: Rule, more: Collection[str], where: str) -> None:
    """Raise ValueError or TypeError unless a loaded entry has the state of `rule`, and `more`, as tensors."""
    if unknown := entry.keys() - {"step", "u", *rule.state, *more}:
        raise ValueError(f"state {', '.join(map(repr, sorted(unknown)))} is not of the rule {rule.name!r} ({where})")
    required = {*rule.state, *(("step",) if rule.counts_steps else ()), *more}
    if entry and (missing := required - entry.keys()):
        raise ValueError(f"state {', '.join(map(repr, sorted(missing)))} of {rule.name!r} is missing ({where})")
    for name, value in entry.items():
        if not isinstance(value, Tensor) and name != "step":
            raise TypeError(f"state {name!r} must be a tensor, got {type(value).__name__} ({where})")
    if "step" in entry and not 0 <= float(entry["step"]) <= LAST_STEP:
        raise ValueError(f"state 'step' must be a number from 0 to 2⁵³, got {float(entry['step']):g} ({where})")


def uncast(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A checked entry for torch's loader."""
    complete = {"step": 0.0, **entry} if entry else {}
    return {
        name: as_count(value, getattr(value, "device", "cpu"), copy=True) if name == "step" else UncastTensor(value)
        for name, value in complete.items()
    }
