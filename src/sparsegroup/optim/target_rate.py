"""Asking for a size: a share of the groups, or a number of bytes."""

from collections.abc import Sequence

from sparsegroup.byte_sizes import bytes_of
from sparsegroup.optim.base import GroupOptimizer
from sparsegroup.optim.group_census import GroupCensus
from sparsegroup.optim.size_target import SizeTarget


class TargetRate(SizeTarget):
    """Keeps a share of the groups: λ21 follows a schedule from all of them to `rate`, and nobody has to guess it.

    Every some steps λ21 becomes the quantile of what groups outlive, ‖u - σ x‖ / √d for norm "s", over those seen, such
    that the scheduled share of them lives. The share falls along a cubic, as in gradual pruning (Zhu and Gupta, 2017),
    and stays while the survivors train. Dead groups go on gathering gradients and come back where these insist. With
    `penalty="hard"` the survivors are not shrunk: the recommended one.

    Args:
        optimizer: The optimizer.
        rate: Live groups over groups seen, in (0, 1]: rows of a table over distinct features ever seen in training,
            rows of an `nn.Embedding` over those that had a gradient.
        steps: Steps of the training. None, for a stream of unknown length: the rate is held within 10 %.
        ramp: Steps until the rate is reached; by default 80 % of `steps`, and 0, at once, where these are unknown.
        interval: Steps between two settings of λ21; by default a fiftieth of `steps`, or 200.
        param_groups: Numbers of the optimizer's param groups whose λ21 is set, together; by default those that hold a
            `HashEmbedding`, or, without one, those whose l21 is positive. For targets that differ, make several
            `TargetRate`s.
        least: Groups that are kept even where `rate` is less; all, where there are fewer.
        sample: Groups of each parameter to look at; by default 65,536, and down to 8,192 in short trainings.
        seed: For drawing the sample.

    Raises:
        ValueError: A number out of range, or no param group to be chosen.
        TypeError: Not an optimizer of this library.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupAdam, HashEmbedding, TargetRate
        >>> table = HashEmbedding(4)
        >>> optimizer = GroupAdam(table.parameters(), penalty="hard")
        >>> target = TargetRate(optimizer, 0.1, steps=50)
        >>> for _ in range(50):
        ...     optimizer.zero_grad()
        ...     table(torch.randint(1000, (64,))).square().sum().backward()
        ...     optimizer.step()
        ...     target.step()
        >>> 0.098 <= table.feature_rate <= 0.102
        True
    """

    def __init__(
        self,
        optimizer: GroupOptimizer,
        rate: float,
        *,
        steps: int | None = None,
        ramp: int | None = None,
        interval: int | None = None,
        param_groups: Sequence[int] | None = None,
        sample: int | None = None,
        seed: int = 0,
        least: int = 0,
    ) -> None:
        if not 0 < rate <= 1:
            raise ValueError(f"rate must be in (0, 1], got {rate}")
        if not isinstance(least, int) or isinstance(least, bool) or least < 0:
            raise ValueError(f"least must be an int >= 0, got {least!r}")
        self.target, self.least = float(rate), least
        super().__init__(
            optimizer,
            steps=steps,
            ramp=ramp,
            interval=interval,
            param_groups=param_groups,
            sample=sample,
            seed=seed,
        )

    def __str__(self) -> str:
        return f"a feature rate of {self.target:g}"

    def _asked_rate(self) -> float:
        return self.target

    def _final_rate(self, censuses: Sequence[GroupCensus]) -> float:
        seen = sum(census.seen for census in censuses)
        return max(self.target, self.least / seen if seen else 0.0)

    def _costs(self, censuses: Sequence[GroupCensus]) -> list[float]:
        return [1.0] * len(censuses)


class TargetBytes(SizeTarget):
    """Keeps as many groups as fit: as `TargetRate`, for a compact model of so many bytes.

    Counted is what the live groups take where the model is served: their weights in the dtype of training, and 8 bytes
    for each key of a table. Features that training has not seen yet are not known before: the share follows.

    Args:
        optimizer: The optimizer.
        size: Bytes, or a text such as "200MB", "1.5 GiB".
        steps, ramp, interval, param_groups, sample, seed: See `TargetRate`.

    Raises:
        ValueError: Not a size, a number out of range, or no param group to be chosen.
        TypeError: Not an optimizer of this library.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupAdam, HashEmbedding, TargetBytes
        >>> table = HashEmbedding(4)
        >>> optimizer = GroupAdam(table.parameters(), penalty="hard")
        >>> TargetBytes(optimizer, "2 kB", steps=1000).target
        2000
    """

    def __init__(
        self,
        optimizer: GroupOptimizer,
        size: int | str,
        *,
        steps: int | None = None,
        ramp: int | None = None,
        interval: int | None = None,
        param_groups: Sequence[int] | None = None,
        sample: int | None = None,
        seed: int = 0,
    ) -> None:
        self.target = bytes_of(size)
        super().__init__(
            optimizer,
            steps=steps,
            ramp=ramp,
            interval=interval,
            param_groups=param_groups,
            sample=sample,
            seed=seed,
        )

    def __str__(self) -> str:
        return f"a size of {self.target:,} bytes"

    def _final_rate(self, censuses: Sequence[GroupCensus]) -> float:
        total = sum(census.live_bytes * census.seen for census in censuses)
        return self.target / total if total else 1.0

    def _costs(self, censuses: Sequence[GroupCensus]) -> list[float]:
        return [float(census.live_bytes) for census in censuses]
