"""What the last training rows say of the settings that are not given: passes, shrinkage and sizes, by short trials."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.data.log import Log
from sparsegroup.data.order import LogPart
from sparsegroup.reporting.run_record import AnyMetrics, Trial
from sparsegroup.settings.auto import has_default_optimizer, has_default_target
from sparsegroup.training.assessment.verdict import BEYOND_NOISE, by_block
from sparsegroup.training.build import Config
from sparsegroup.training.metrics import exceeds_noise
from sparsegroup.training.predictions import predictions_of
from sparsegroup.training.selection.pair_gains import PairGains
from sparsegroup.training.state import EpochProgress, TemporaryBest, table_figures
from sparsegroup.training.trainer import Callback, Trainer

LEAST_ROWS, MOST_ROWS = 5_000, 500_000
"""Training rows of a log on which all trials are made: on fewer they show nothing, on more they take too long."""

HELD_OUT = 0.1
MOST_EPOCHS = 10

SHRINKAGE = 0.25
"""λ2 times the batch size, where it is tried: gradients are means over a batch, and σ grows with their sum."""

LARGER = 0.3
"""The size that is tried between the default and all features, where the default is too small."""

FEW = 0.01
"""The share of features left by `target_bytes` up to which shorter vectors are tried; see docs/size.md."""

SHORTER = (1, 2, 4)
"""Lengths of vectors that are tried then, the one first that most features fit with."""

SPARE = 450_000
"""Samples that the trials of resets, shorter vectors, λ2 and size may take together."""

MOST_RESET = 200_000
"""Rows of a pass up to which resets are tried: of longer logs none has needed them, and λ2 and size are worth more."""

SAMPLE = 300_000
"""The last training rows of a longer log than that, on which pairs of fields are tried."""

Reporting = Callable[[int, str], AbstractContextManager[Callback | None]]
"""From the most samples of a trial and its name to a context, which yields a callback that shows its progress."""

Float64s = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Score:
    """A model after an epoch: its trial, and its log loss in each of some blocks of held-out rows, see `by_block`."""

    config: Config
    trial: Trial
    metrics: AnyMetrics
    losses: Float64s

    def is_as_good_as(self, best: "_Score", errors: float) -> bool:
        """Whether the other is not better by more than this number of standard errors of the mean over blocks."""
        return not exceeds_noise(self.losses - best.losses, errors)


def settings_by_trials(
    config: Config, log: Log, reporting: Reporting = lambda samples, name: nullcontext()
) -> tuple[Config, tuple[Trial, ...]]:
    """The settings that trials on a log choose, and the trials.

    The last tenth of the training rows is held out, and models are trained on the others. The lowest loss on these
    rows decides, with each model's logits shifted so that its predictions add up, where it is lower by more than noise:
    for pairs and λ2 a standard error of the mean over 20 blocks of rows, for passes and size a paired t-test over them
    at 5 %. Otherwise the first is taken. In this order:

    1. pairs of fields (`model.pairs`): none, or the up to five that `PairGains` finds in the first pass;
    2. passes, and whether the embeddings are reset in each (`training.epochs`, `training.after_first_epoch`): fewer
       passes first. A trial ends with the first pass that makes the log loss no lower;
    3. shorter vectors (`model.dims`), where `target_bytes` leaves up to 1 % of the features: 1, 2 or 4 numbers for all
       fields, so that more features fit. The lowest loss decides, also within noise;
    4. shrinkage (`optimizer.l2`): none, or 1/4 over the batch size;
    5. size (`optimizer.target_rate`): the default, .3 or all features.

    Resets, vectors, λ2 and size are tried as long as that takes about 450,000 samples together, resets on up to 200,000
    rows.
    On a log of more than 500,000 training rows only pairs are tried, on the last 300,000.

    Given settings are not tried; nor are any where `training.selection` is "never", rows are held out or
    learning rates scheduled by given settings, or the log has fewer than 5,000 training rows.

    Args:
        config: The settings.
        log: What the run is to train on; its test rows are not read.
        reporting: Shows the progress of a trial.

    Returns:
        The settings, decided for the log, and all models that were measured, each after one of its passes; none if
        nothing was tried.

    Raises:
        SettingsError: As `Config.build`.
        FloatingPointError: Training with the defaults has diverged in the first pass.
    """
    config = config.resolved_for(log)
    tried = _tried(config)
    if log.train_rows > MOST_ROWS:
        log, tried = LogPart(log, log.train_rows - SAMPLE, SAMPLE), tried & {"model.pairs"}
    if not tried or log.train_rows < LEAST_ROWS:
        return config, ()
    search = _Search(log, reporting, tried)
    best = search.passes(config)
    if "model.dims" in tried:
        best = search.vectors(best)
    if "optimizer.l2" in tried:
        best = search.shrinkage(best)
    if "optimizer.target_rate" in tried:
        best = search.size(best)
    return best.config, tuple(replace(one.trial, is_chosen=one is best) for one in search.scores)


def _tried(config: Config) -> set[str]:
    """Keys of the settings that trials may choose."""
    training, optimizer, given = config.training, config.optimizer, config.given_sections()
    if training.selection == "never" or training.validation or optimizer.schedule != "constant" or optimizer.warmup:
        return set()
    tried = set()
    if not {"epochs", "after_first_epoch"} & given.get("training", {}).keys():
        tried.add("training.epochs")
    if has_default_optimizer(given) and "l2" not in given.get("optimizer", {}):
        tried.add("optimizer.l2")
    if has_default_target(given):
        tried.add("optimizer.target_rate")
    can_be_shorter = config.model.name != "lr" and config.model.max_table_bytes is None
    if (
        config.optimizer.target_bytes is not None
        and can_be_shorter
        and not {"dim", "dims"} & given.get("model", {}).keys()
    ):
        tried.add("model.dims")
    is_of_a_score = config.objective.outputs == 1 and not config.objective.takes_groups
    if "pairs" not in given.get("model", {}) and is_of_a_score:  # by whose loss pairs are compared
        tried.add("model.pairs")
    return tried


class _Search:
    """All models that were measured, and how many samples further trials may take."""

    def __init__(self, log: Log, reporting: Reporting, tried: Collection[str]) -> None:
        self.log, self.reporting, self._tried = log, reporting, tried
        self.scores: list[_Score] = []
        self._is_open = "training.epochs" in tried
        self._spare = SPARE

    def passes(self, config: Config) -> _Score:
        """How many passes are best, and of which kind; and whether pairs of fields are worth it, after the first."""
        most, patience = (MOST_EPOCHS, 1) if self._is_open else (config.training.epochs, 0)
        with TemporaryDirectory(prefix="sparsegroup-trials-") as folder:
            training = _Training(config, self.log, most, Path(folder, "fields"), patience)
            pairs = self._pairs(training)
            first = training.scores[0]
            self.scores.append(first)
            if pairs:
                paired = config.decided({"model.pairs": pairs, **_without_recalibration(config)})
                other = _Training(paired, self.log, most, Path(folder, "pairs"), patience)
                self._train(other, 1)
                self.scores += other.scores
                if _simplest([first, *other.scores]) is not first:
                    training, first = other, other.scores[0]
            self._train(training, most)
            scores = [*training.scores]
            if self._is_open and training.plan.rows <= MOST_RESET and self._pays(training.plan.rows):
                training.reset_after_first_epoch(first)
                self._train(training, most)
                scores += training.scores[1:]
        self.scores += scores[1:]
        return _simplest(scores, BEYOND_NOISE) if self._is_open else scores[-1]

    def _pairs(self, training: "_Training") -> list[str]:
        """The pairs of fields that tell more than their parts along the first pass, which this makes."""
        gains = [PairGains()] if "model.pairs" in self._tried else []
        training.train(1, self.reporting, gains)
        single = self.log.schema.single
        return [f"{single[left]}*{single[right]}" for one in gains for left, right in one.best()]

    def shrinkage(self, best: _Score) -> _Score:
        """Whether λ2 is worth it, with which a further pass may be."""
        assert best.config.training.batch_size is not None
        config = best.config.decided({"optimizer.l2": SHRINKAGE / best.config.training.batch_size})
        epochs = best.trial.epochs
        if self._is_open and epochs > 1:  # less is memorized, so a further pass may be of use
            epochs = min(epochs + 1, MOST_EPOCHS)
        if not self._pays(epochs * self.log.train_rows):
            return best
        return _simplest([best, *self._trained(config, epochs)])

    def size(self, best: _Score) -> _Score:
        """The smallest size that is as good as all features."""
        epochs = best.trial.epochs
        if best.trial.feature_rate > LARGER or not self._pays(epochs * self.log.train_rows):
            return best
        whole = self._trained(best.config.decided({"optimizer.target_rate": 1.0}), epochs)
        if _simplest([best, *whole], BEYOND_NOISE) is best or not self._pays(epochs * self.log.train_rows):
            return _simplest([best, *whole], BEYOND_NOISE)
        larger = self._trained(best.config.decided({"optimizer.target_rate": LARGER}), epochs)
        return _simplest([best, *larger, *whole], BEYOND_NOISE)

    def vectors(self, best: _Score) -> _Score:
        """The best length of all vectors where few features fit, and more of shorter ones would."""
        scores, epochs, model = [best], best.trial.epochs, best.config.model
        for dim in SHORTER if best.trial.feature_rate <= FEW else ():
            if dim < model.vector_dim and self._pays(epochs * self.log.train_rows):
                dims = dict.fromkeys(model.vocabularies(self.log.schema).values(), dim)
                scores += self._trained(best.config.decided({"model.dims": dims}), epochs)
        return _simplest(scores, 0.0)

    def _trained(self, config: Config, epochs: int) -> list[_Score]:
        with TemporaryDirectory(prefix="sparsegroup-trials-") as folder:
            training = _Training(config, self.log, epochs, Path(folder), patience=int(self._is_open))
            self._train(training, epochs)
        self.scores += training.scores
        return training.scores if self._is_open else training.scores[-1:]

    def _train(self, training: "_Training", epochs: int) -> None:
        """Train until this number of passes is done, one has made the model no better, or it diverges."""
        with suppress(FloatingPointError):
            training.train(epochs, self.reporting)

    def _pays(self, samples: int) -> bool:
        """Whether there is still time for a number of samples, which are then taken."""
        if samples > self._spare:
            return False
        self._spare -= samples
        return True


def _without_recalibration(config: Config) -> dict[str, Any]:
    """A model with pairs remembers its rows too well to be recalibrated by them, unless that is given."""
    return {} if "training.recalibrate" in config.given_keys else {"training.recalibrate": False}


def _simplest(scores: Sequence[_Score], errors: float = 1.0) -> _Score:
    """The first that is as good as the best, within this number of standard errors."""
    best = min(scores, key=lambda one: one.losses.sum())
    return next(one for one in scores if one.is_as_good_as(best, errors))


class _Training:
    """A model that is trained on all but the held-out rows, in up to `epochs` passes.

    Attributes:
        scores: Its scores after each pass.
    """

    def __init__(self, config: Config, log: Log, epochs: int, folder: Path, patience: int = 1) -> None:
        self.config, self.log = config, log
        held_out = {"training.validation": HELD_OUT, "training.patience": patience, "training.epochs": epochs}
        self.plan = config.decided(held_out).training.plan(log.train_rows)
        self._model, self._optimizer = config.build(log)
        self.trainer = config.trainer(self._model, self._optimizer, self.plan)
        self._own_callbacks = self.trainer.callbacks
        self._first = _AfterFirst(folder, self._model, [self._optimizer], None)
        self.scores: list[_Score] = []

    def train(self, epochs: int, reporting: Reporting, callbacks: Sequence[Callback] = ()) -> None:
        """Train until this number of passes is done, or one has made the model no better."""
        trainer = self.trainer
        trainer.progress = replace(trainer.progress, is_over=False)
        samples = (epochs - trainer.progress.epoch) * self.plan.rows
        if not trainer.progress.goes_on(epochs, self.plan.patience):
            return
        with reporting(samples, self._name) as shown:
            more = [*callbacks, *([] if shown is None else [shown])]
            trainer.callbacks = [*self._own_callbacks, _Curve(self.config, self.scores), *more]
            trainer.fit(**{**self.plan.arguments(self.log), "epochs": epochs}, best=self._first)
        self._first.keep()

    def reset_after_first_epoch(self, first: _Score) -> None:
        """Go back to the state after the first pass, which had that score; the embeddings are reset in each further."""
        self._first.restore()
        self.config = first.config.decided({"training.after_first_epoch": "reset"})
        self.plan = replace(self.plan, after_first_epoch="reset")
        self.trainer = self.config.trainer(self._model, self._optimizer, self.plan)
        self._own_callbacks = self.trainer.callbacks
        self.trainer.progress = EpochProgress(epoch=1, best=1, validation=first.metrics)
        self.scores = [first]

    @property
    def _name(self) -> str:
        optimizer, training = self.config.optimizer, self.config.training
        parts = ["trial"]
        if self.config.model.pairs:
            parts.append("pairs of fields")
        if training.after_first_epoch == "reset":
            parts.append("reset in each pass")
        if optimizer.l2:
            parts.append(f"l2 {optimizer.l2:.2g}")
        if optimizer.target_rate is not None:
            parts.append(f"{optimizer.target_rate:.0%} of the features")
        if dims := self.config.model.dims:
            parts.append(f"vectors of {max(dims.values())}")
        return ", ".join(parts)


class _AfterFirst(TemporaryBest):
    """The state after the first epoch, even where a later one is better."""

    def keep(self) -> None:
        if not self._count:
            super().keep()


class _Curve(Callback):
    """Scores a model after each epoch."""

    def __init__(self, config: Config, scores: list[_Score]) -> None:
        self.config, self.scores = config, scores

    def on_validation(self, trainer: Trainer, metrics: AnyMetrics) -> None:
        """See `Callback`."""
        window = trainer.validated
        assert window is not None
        epochs, optimizer = trainer.progress.epoch, self.config.optimizer
        rate = table_figures(trainer.table)[0]["feature_rate"]
        mode = self.config.training.after_first_epoch
        pairs = tuple(self.config.model.pairs or ())
        # The level of a model's predictions hangs on its last batches, and is mended in the end of a run.
        calibrated = predictions_of([torch.from_numpy(window.logits() + window.shift())], window.objective)
        auc = getattr(metrics, "auc", nan)
        dim = max(self.config.model.dims.values(), default=self.config.model.vector_dim)
        trial = Trial(epochs, mode, pairs, optimizer.l2, rate, auc, window.measured(calibrated).loss, dim=dim)
        losses = [one.loss for one in by_block(window, calibrated) if one.loss == one.loss]  # NaN: without a pair
        self.scores.append(_Score(self.config.decided({"training.epochs": epochs}), trial, metrics, np.array(losses)))
