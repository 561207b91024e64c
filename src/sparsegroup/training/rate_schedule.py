"""How the learning rate goes along a training of known length."""

import math
from dataclasses import dataclass

from sparsegroup.settings.names import ScheduleName


@dataclass(frozen=True)
class RateSchedule:
    """Step t = 0, 1, … of T → the factor of the learning rate, for `torch.optim.lr_scheduler.LambdaLR`.

    It rises along (t + 1) / W over the first W = ⌈warmup · T⌉ steps. Then, with p = (t - W) / (T - W), it is 1
    ("constant"), 1 - p ("linear") or (1 + cos πp) / 2 ("cosine"), and stays what it is at the last step.

    Attributes:
        kind: "constant", "linear" or "cosine".
        steps: T ≥ 1.
        warmup: Share of the steps, in [0, 1).

    Raises:
        ValueError: A number out of range, or another kind.

    Examples:
        >>> from sparsegroup.training.rate_schedule import RateSchedule
        >>> schedule = RateSchedule("linear", steps=8, warmup=0.5)
        >>> [schedule(t) for t in range(9)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25, 0.25]
    """

    kind: ScheduleName
    steps: int
    warmup: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "linear", "cosine"):
            raise ValueError(f"kind must be 'constant', 'linear' or 'cosine', got {self.kind!r}")
        if self.steps < 1:
            raise ValueError(f"steps must be >= 1, got {self.steps}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup must be in [0, 1), got {self.warmup}")

    def __call__(self, step: int) -> float:
        """The factor at a step, counted from 0."""
        step = min(step, self.steps - 1)
        rising = math.ceil(self.warmup * self.steps)
        if step < rising:
            return (step + 1) / rising
        along = (step - rising) / (self.steps - rising)
        if self.kind == "cosine":
            return (1 + math.cos(math.pi * along)) / 2
        return 1 - along if self.kind == "linear" else 1.0
