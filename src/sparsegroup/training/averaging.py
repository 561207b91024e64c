"""The mean of a network's weights over the last steps of an epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_swa_avg_fn

from sparsegroup.artifact.validation import STRICT, Count, validated
from sparsegroup.optim.averaging import with_zeros_of
from sparsegroup.training.trainer import Callback, TrainedBatch, Trainer


@dataclass(frozen=True)
class _State:
    """The means so far, and of how many steps."""

    __pydantic_config__: ClassVar = STRICT

    count: Count
    means: list[Tensor]


class AveragedNetwork(Callback):
    """Replaces a network's weights, at the end of each epoch, by their mean over its last steps.

    At a constant learning rate the last weights depend on the last batches; their mean does so less (Polyak and
    Juditsky, 1992). Vectors of a table are not averaged. Weights that a penalty has set to zero are averaged over
    the steps since then, as `keep_zeros` does.

    Args:
        steps: How many steps an epoch has.
        share: Share of the steps, from the end, that are averaged; at least one.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupAdam, HashEmbedding
        >>> from sparsegroup.models import MLP
        >>> from sparsegroup.training import AveragedNetwork, Trainer
        >>> table, network = HashEmbedding(4), MLP(fields=3, dim=4)
        >>> optimizer = GroupAdam([*table.parameters(), *network.parameters()])
        >>> stream = [(torch.randint(100, (32, 3)), torch.randint(2, (32,))) for _ in range(10)]
        >>> averaged = AveragedNetwork(steps=10, share=0.5)
        >>> trainer = Trainer(table, network, optimizer, window=320, callbacks=[averaged])
        >>> points = trainer.fit(stream)
    """

    def __init__(self, steps: int, share: float = 0.2) -> None:
        if steps < 1 or not 0 < share <= 1:
            raise ValueError(f"steps must be >= 1 and share in (0, 1], got {steps} and {share}")
        self.steps, self.first = steps, steps - max(1, round(share * steps))
        self._means: list[Tensor] = []
        self._count = 0

    @torch.no_grad()
    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        """See `Callback`."""
        if trainer.progress.steps <= self.first:
            self._means, self._count = [], 0
            return
        weights = _weights_of(trainer.network)
        if not self._count:
            self._means = [one.clone() for one in weights]
        else:
            averaged = get_swa_avg_fn()  # type: ignore[no-untyped-call]
            for mean, weight in zip(self._means, weights, strict=True):
                mean.copy_(with_zeros_of(weight, mean, averaged(mean, weight, self._count)))
        self._count += 1
        if trainer.progress.steps == self.steps:
            for mean, weight in zip(self._means, weights, strict=True):
                weight.copy_(mean)

    def state_dict(self) -> dict[str, Any] | None:
        """See `Callback`."""
        return {"count": self._count, "means": self._means} if self._count else None

    def load_state_dict(self, trainer: Trainer, states: Sequence[Any]) -> None:
        """See `Callback`; the means of all ranks are the same."""
        state, weights = validated(_State, states[0]), _weights_of(trainer.network)
        if [one.shape for one in state.means] != [one.shape for one in weights]:
            raise ValueError("means: are not of the network's weights")
        means = zip(state.means, weights, strict=True)
        self._means, self._count = [mean.to(weight.device, copy=True) for mean, weight in means], state.count


def _weights_of(network: nn.Module) -> list[Tensor]:
    return [one.detach() for one in network.parameters() if one.requires_grad]
