"""A model in training on a log: trained part by part, and set back to where it was."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sparsegroup.data import Log
from sparsegroup.training import Callback, Config, Trainer


@dataclass(frozen=True)
class LearnerState:
    """All that training changes, at some point of a learner's pass."""

    model: Any
    optimizer: Any
    generator: torch.Tensor


class Learner:
    """A freshly initialized model, its optimizer, and the log they learn from.

    Args:
        log: The log.
        config: Settings of model, optimizer and training; its seed seeds torch's generator.
    """

    def __init__(self, log: Log, config: Config) -> None:
        self.log, self.config = log, config
        self.model, self.optimizer = config.build(log)

    def fit(self, start: int, stop: int, callbacks: Sequence[Callback] = ()) -> None:
        """Train on rows `start` to `stop` once, to the config's target size at their end.

        An experiment's pass is one epoch in the log's order: of the config's `training`, batch size and seed count.
        """
        size = self.config.training.batch_size
        steps = -(-(stop - start) // size)
        trainer = Trainer(
            self.model.embedding,
            self.model.network,
            self.optimizer,
            scheduler=self.config.optimizer.scheduler(self.optimizer, steps),
            target=self.config.optimizer.target(self.optimizer, steps),
            window=max(1, stop - start),
            callbacks=callbacks,
        )
        trainer.fit(self.log.batches(start, stop, size))

    def state(self) -> LearnerState:
        """Where training is, to go back to."""
        return LearnerState(
            copy.deepcopy(self.model.state_dict()), copy.deepcopy(self.optimizer.state_dict()), torch.get_rng_state()
        )

    def restore(self, state: LearnerState) -> None:
        """Go back."""
        self.model.load_state_dict(state.model)
        self.optimizer.load_state_dict(state.optimizer)
        torch.set_rng_state(state.generator)
