"""What a run is compared with: a linear model of the same objective on the same batches, trained along the way."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsegroup.artifact.validation import STRICT, validated
from sparsegroup.data.batches import Batch
from sparsegroup.data.keys import moved
from sparsegroup.data.schema import LogSchema
from sparsegroup.errors import RunError
from sparsegroup.kernels.cpu.jit import Kernel, inline, jitted, kernel, prefetch
from sparsegroup.models import PairKeys
from sparsegroup.models.layers import merged_moments
from sparsegroup.models.pairs import pairs_of
from sparsegroup.objectives import LOGISTIC, Logistic, Objective
from sparsegroup.reporting.run_record import LOSSES
from sparsegroup.training.predictions import PredictionWindow, check_tensor, predictions_of
from sparsegroup.training.ranks import RankGroup
from sparsegroup.training.state import CheckpointMetadata
from sparsegroup.training.trainer import Callback, TrainedBatch, Trainer

BETA = 0.3
"""FTRL's β."""

AHEAD = 2
"""Rows whose weights are requested before they are needed."""

WEIGHT, SUM = 0, 1
PARTS = 2
"""What is kept of a coordinate: x, and Σ g²."""

COUNT, MEAN, SQUARES = 0, 1, 2
MOMENTS = 3
"""What is kept of a number: how many there were, their mean, and the sum of their squared distances from it."""

PER_NUMBER = 3
"""Features made of a number: itself, standardized, and two buckets."""

HASH_BITS = 22
"""Features share 2²² weights: 32 MiB, of which weights without features are never touched."""

LEAST_BITS, MOST_MODELS = 16, 64
"""Several models share as many weights, but 2¹⁶ each at least; of more models than that there is no baseline."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ over the golden ratio
_KIND = np.uint64(1) << np.uint64(48)
_LIMIT = 4.0
_STEPS = 4.0


@jitted
def _slot(key: Any, shift: Any) -> Any:
    return np.int64((key * _MULTIPLIER) >> shift)


@jitted
def _bucket(number: Any, kind: Any, value: Any, shift: Any) -> Any:
    key = np.uint64(number * 4 + kind + 1) * _KIND + np.uint64(value)
    return _slot(key * _MULTIPLIER ^ (key >> np.uint64(29)), shift)


@jitted
def _is_finite(value: Any) -> Any:
    return value - value == 0.0


@jitted
def _standardized(value: Any, moments: Any) -> Any:
    deviation = math.sqrt(moments[SQUARES] / moments[COUNT]) if moments[COUNT] > 1 else 0.0
    distance = (value - moments[MEAN]) / deviation if deviation > 0 else 0.0
    return max(-_LIMIT, min(_LIMIT, distance))


@jitted
def _note(value: Any, moments: Any) -> None:
    """Welford's update."""
    moments[COUNT] += 1
    distance = value - moments[MEAN]
    moments[MEAN] += distance / moments[COUNT]
    moments[SQUARES] += distance * (value - moments[MEAN])


@jitted
def _gather(
    i: Any, keys: Any, bag_keys: Any, bag_offsets: Any, numbers: Any, bits: Any, moments: Any, shift: Any,
    slots: Any, values: Any,
) -> Any:  # fmt: skip
    """Places and values of the features of row `i`; gives how many there are."""
    plain = np.int64(1) << np.int64(np.uint64(64) - shift)  # behind the hashed ones: the bias, and a number itself
    slots[0], values[0] = plain, 1.0
    count = 1
    for j in range(keys.shape[1]):
        slots[count], values[count] = _slot(keys[i, j], shift), 1.0
        count += 1
    for j in range(bag_offsets.shape[0]):
        begin, end = bag_offsets[j, i], bag_offsets[j, i + 1]
        for k in range(begin, end):
            slots[count], values[count] = _slot(bag_keys[k], shift), 1.0
            count += 1
    for j in range(numbers.shape[1]):
        value = np.float64(numbers[i, j])
        if not _is_finite(value):
            slots[count], values[count] = _bucket(j, 0, 0, shift), 1.0
            count += 1
            continue
        standardized = _standardized(value, moments[j])
        slots[count], values[count] = plain + 1 + j, standardized
        slots[count + 1], values[count + 1] = _bucket(j, 1, bits[i, j] >> np.uint32(20), shift), 1.0
        steps = np.int64(math.floor((standardized + _LIMIT) * _STEPS + 0.5))
        slots[count + 2], values[count + 2] = _bucket(j, 2, steps, shift), 1.0
        count += PER_NUMBER
    return count


_residual = inline(Logistic.residual)
"""Of an objective; kernels of others have theirs in its place."""


def _online_pass(
    keys: Any, bag_keys: Any, bag_offsets: Any, numbers: Any, bits: Any, labels: Any, weights: Any,
    memory: Any, moments: Any, slots: Any, values: Any, shift: Any, inverse_lr: Any, shape: Any, learns: Any,
    logits: Any,
) -> None:  # fmt: skip
    address, row = np.int64(memory.ctypes.data), memory.shape[1] * memory.itemsize
    for i in range(len(logits)):
        if i + AHEAD < len(logits):
            for j in range(keys.shape[1]):
                prefetch(address + _slot(keys[i + AHEAD, j], shift) * row)
        count = _gather(i, keys, bag_keys, bag_offsets, numbers, bits, moments, shift, slots, values)
        logit = 0.0
        for c in range(count):
            logit += memory[slots[c], WEIGHT] * values[c]
        logits[i] = logit
        if not learns:
            continue
        error = _residual(logit, np.float64(labels[i]), shape) * weights[i]
        for c in range(count):
            at = memory[slots[c]]
            gradient = error * values[c]
            total = np.float64(at[SUM]) + gradient * gradient
            sigma = (math.sqrt(total) + BETA) * inverse_lr
            # The closed form (eq. 8) with all λ = 0, where no residual remains: x = -z / σ.
            at[WEIGHT], at[SUM] = (sigma * at[WEIGHT] - gradient) / sigma, total
        for j in range(numbers.shape[1]):
            if _is_finite(np.float64(numbers[i, j])):
                _note(np.float64(numbers[i, j]), moments[j])


@cache
def online_pass(residual: Callable[..., Any]) -> Kernel:
    """A kernel that predicts rows into `logits` `[n]` float32; if it `learns`, it learns from each before the next.

    `keys` are `[n, fields]` uint64. Row i of a list has `bag_keys` from `bag_offsets[list, i]` on. `bits` are the
    float32 `numbers` `[n, numbers]` as uint32; what is not finite is missing. `memory` `[2 ** bits + 1 + numbers,
    PARTS]` float32 and `moments` `[numbers, MOMENTS]` float64, in which it learns, are zeros at first. `slots` (int64)
    and `values` (float64) are scratch for the features of a row. `shift` is 64 less the bits of a hash, `shape` the
    objective's parameter, whose `residual` is given.
    """
    return kernel(_online_pass, "the baseline", {"_residual": inline(residual)})


class LinearBaseline:
    """A linear model over hashed features by FTRL-Proximal, one row at a time (McMahan et al., KDD 2013).

    By default it is a logistic regression.

    A key has its own weight except for chance collisions; a list adds up the weights of its values. A number is given
    three times: standardized by the mean and variance so far, within ±4; as a bucket of its logarithm, eight to the
    octave; and as a bucket of a quarter of a standard deviation. What is not finite is missing, which has a weight. The
    learning rate is 2 over the number of features of a row, β is 0.3, and all λ are 0.

    Args:
        columns: The columns of a row. A field that shares another's vocabulary has separate weights. None: no field
            does, and a row has as many numbers as in the first batch.
        pairs: Pairs of fields whose combinations are also features.
        objective: What it learns.
        bits: Its features share 2 to this power of weights.

    Examples:
        >>> import torch
        >>> from sparsegroup.training.predictions import as_batch
        >>> baseline = LinearBaseline()
        >>> keys = torch.randint(50, (2_000, 3)) + torch.tensor([0, 50, 100])  # no key in two fields
        >>> labels = (keys[:, 0] < 25).float()
        >>> _ = baseline.learn(as_batch((keys, labels)))
        >>> logits = baseline.predict(as_batch((keys, labels)))
        >>> bool(((logits > 0) == (labels > 0)).all())
        True
    """

    def __init__(
        self,
        *,
        columns: LogSchema | None = None,
        pairs: PairKeys | None = None,
        objective: Objective = LOGISTIC,
        bits: int = HASH_BITS,
    ) -> None:
        self.columns, self.pairs, self.objective, self._bits = columns, pairs, objective, bits
        self._memory: npt.NDArray[np.float32] | None = None
        self._numbers, self._moments = None if columns is None else len(columns.numbers), np.zeros((0, MOMENTS))

    def learn(self, batch: Batch) -> Tensor:
        """Logits `[n]` float32 of a batch on the host, each row's from before it was learnt, in order.

        Raises:
            ValueError: It has another number of numbers than those before.
        """
        return self._pass(batch, learns=True)

    def predict(self, batch: Batch) -> Tensor:
        """Logits `[n]` float32 of a batch on the host."""
        return self._pass(batch, learns=False)

    def state_dict(self) -> dict[str, Tensor]:
        """Places `[m]` int32 of the weights that were learnt, what is kept of each `[m, 2]`, and of the numbers."""
        memory = np.zeros((0, PARTS), np.float32) if self._memory is None else self._memory
        places = np.flatnonzero(memory[:, SUM])
        return {
            "places": torch.from_numpy(places.astype(np.int32)),
            "weights": torch.from_numpy(memory[places]),
            "moments": torch.from_numpy(self._moments.copy()),
        }

    def load_state_dict(self, *states: Mapping[str, Tensor]) -> None:
        """Continue from where `state_dict` found another.

        Several baselines that learnt from different rows give their mean: of a weight by what each knows of its
        feature, the sums of squared gradients, which add up (parameter mixing, Zinkevich et al., NeurIPS 2010); of
        numbers the moments of all rows.

        Raises:
            ValueError: It is no such state; nothing has changed.
        """
        checked = [BaselineState.of(state, self._numbers, self._bits) for state in states]
        moments = [one.moments for one in checked if len(one.moments)]  # without a row, it knows of no numbers
        if len(moments) > 1:
            moments = [torch.stack(merged_moments(torch.stack([one.T for one in moments])), 1)]
        self._moments = moments[0].numpy().copy() if moments else np.zeros((0, MOMENTS))
        places = np.unique(np.concatenate([one.places.numpy() for one in checked]))
        weighted, total = np.zeros(len(places)), np.zeros(len(places))
        for one in checked:
            at, known = np.searchsorted(places, one.places.numpy()), one.weights.double().numpy()
            weighted[at] += known[:, WEIGHT] * known[:, SUM]
            total[at] += known[:, SUM]
        self._memory = self._new_memory() if len(places) else None  # of one that has learnt, the bias is there
        if self._memory is not None:
            self._memory[places, WEIGHT] = np.divide(weighted, total, out=np.zeros_like(total), where=total > 0)
            self._memory[places, SUM] = total

    def window_of(self, state: Mapping[str, Tensor]) -> Tensor:
        """The logits of a callback's window in its state; ValueError if it is no such state."""
        return BaselineState.of(state, bits=self._bits).logits

    def _new_memory(self) -> npt.NDArray[np.float32]:
        return np.zeros(((1 << self._bits) + 1 + len(self._moments), PARTS), np.float32)

    def _pass(self, batch: Batch, *, learns: bool) -> Tensor:
        batch = _unshared(batch.for_device(torch.device("cpu")), self.columns)
        rows, numbers = batch.numbers.shape
        given_keys = batch.keys.cpu() if self.pairs is None else self.pairs(batch.keys.cpu())
        keys = np.ascontiguousarray(given_keys.numpy()).view(np.uint64)
        keys = keys.reshape(rows, math.prod(keys.shape[1:]))
        if self._memory is None:
            self._moments = np.zeros((numbers, MOMENTS))
            self._memory = self._new_memory()
            if not self.objective.is_binary and learns:  # whose mean may be far from a score of 0
                y, counts = batch.labels.double().numpy(), np.ones(rows)
                self._memory[1 << self._bits, WEIGHT] = self.objective.start(y, counts)
        if len(self._moments) != numbers:
            raise ValueError(f"the baseline has learnt from rows of {len(self._moments)} numbers, got {numbers}")
        given = np.ascontiguousarray(batch.numbers.numpy(), np.float32)
        weights = np.ones(rows, np.float32) if batch.weights is None else batch.weights.numpy()
        bag_keys, bag_offsets, most = _joined(batch)
        features = keys.shape[1] + PER_NUMBER * numbers
        logits, labels = np.empty(rows, np.float32), self.objective.in_scores(batch.labels.numpy())
        online_pass(type(self.objective).residual)(
            keys,
            bag_keys,
            bag_offsets,
            given,
            given.view(np.uint32),
            np.ascontiguousarray(labels, np.float32),
            np.ascontiguousarray(weights, np.float32),
            self._memory,
            self._moments,
            np.empty(1 + features + most, np.int64),
            np.empty(1 + features + most),
            np.uint64(64 - self._bits),
            1 / (2.0 / max(1, features + len(batch.bags))),
            self.objective.shape,
            learns,
            logits,
        )
        return torch.from_numpy(logits)


@dataclass(frozen=True)
class BaselineState:
    """See `LinearBaseline.state_dict`; with the logits of a callback's window."""

    __pydantic_config__: ClassVar = STRICT

    places: Tensor
    weights: Tensor
    moments: Tensor
    logits: Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def of(cls, content: Any, numbers: int | None = None, bits: int = HASH_BITS) -> "BaselineState":
        """A state of rows with this many numbers; else ValueError, whose message begins with the field."""
        state = validated(cls, content)
        check_tensor("places", state.places, torch.int32, state.places.numel())
        check_tensor("weights", state.weights, torch.float32, state.places.numel(), PARTS)
        check_tensor("moments", state.moments, torch.float64, len(state.moments) if state.moments.ndim else 0, MOMENTS)
        check_tensor("logits", state.logits, torch.float32, state.logits.numel())
        if numbers is not None and len(state.moments) not in (0, numbers):
            raise ValueError(f"moments: are not of {numbers} numbers")
        end = (1 << bits) + 1 + len(state.moments)
        if bool((state.places < 0).any()) or bool((state.places >= end).any()):
            raise ValueError(f"places: has some that are not within 0 to {end - 1}")
        if bool((state.weights[:, SUM] < 0).any()) or bool((state.moments[:, [COUNT, SQUARES]] < 0).any()):
            raise ValueError("weights, moments: have a sum of squares or a count below 0")
        return state


class LinearBaselines:
    """A `LinearBaseline` for each part of an objective of several outputs: for each class against the others.

    Args:
        objective: What they learn, see `Objective.parts`.
        columns, pairs: See `LinearBaseline`.
    """

    def __init__(
        self, *, objective: Objective, columns: LogSchema | None = None, pairs: PairKeys | None = None
    ) -> None:
        self.objective, parts = objective, objective.parts
        bits = max(LEAST_BITS, HASH_BITS - (len(parts) - 1).bit_length())
        self._models = [LinearBaseline(columns=columns, pairs=pairs, objective=one, bits=bits) for one in parts]

    def learn(self, batch: Batch) -> Tensor:
        """Logits `[n, outputs]` of a batch on the host, each row's from before it was learnt, in order."""
        weights = torch.ones(len(batch)) if batch.weights is None else batch.weights.cpu()
        found = []
        for model, labels in zip(self._models, self.objective.labels_of_parts(batch.labels.cpu()).T, strict=True):
            known = ~labels.isnan()
            filled = labels.nan_to_num(float(labels[known].mean()) if known.any() else 1.0)  # which count nothing
            found.append(model.learn(replace(batch, labels=filled, weights=weights * known)))
        return self.objective.of_parts(torch.stack(found, dim=1))

    def predict(self, batch: Batch) -> Tensor:
        """Logits `[n, outputs]` of a batch on the host."""
        own = replace(batch, labels=torch.zeros(len(batch)))
        return self.objective.of_parts(torch.stack([model.predict(own) for model in self._models], dim=1))

    def state_dict(self) -> dict[str, Any]:
        """The states of the models, in order."""
        return {"models": [model.state_dict() for model in self._models]}

    def load_state_dict(self, *states: Mapping[str, Any]) -> None:
        """See `LinearBaseline.load_state_dict`."""
        parts = [_StatesOfParts.of(state, self.objective).models for state in states]
        models = [copy(model) for model in self._models]
        for model, *of_model in zip(models, *parts, strict=True):
            model.load_state_dict(*of_model)
        self._models = models

    def window_of(self, state: Mapping[str, Any]) -> Tensor:
        """See `LinearBaseline.window_of`."""
        return _StatesOfParts.of(state, self.objective).logits


Baseline = LinearBaseline | LinearBaselines


def baseline_for(
    objective: Objective, columns: LogSchema | None = None, pairs: PairKeys | None = None
) -> Baseline | None:
    """The baseline of an objective, see `LinearBaseline`; None of one that would take more than 64 models."""
    if objective.outputs == 1:
        return LinearBaseline(columns=columns, pairs=pairs, objective=objective)
    if len(objective.parts) > MOST_MODELS:
        return None
    return LinearBaselines(columns=columns, pairs=pairs, objective=objective)


@dataclass(frozen=True)
class _StatesOfParts:
    """See `LinearBaselines.state_dict`; with the logits of a callback's window."""

    __pydantic_config__: ClassVar = STRICT

    models: tuple[Mapping[str, Tensor], ...]
    logits: Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def of(cls, content: Any, objective: Objective) -> "_StatesOfParts":
        state = validated(cls, content)
        if len(state.models) != len(objective.parts):
            raise ValueError(f"models: are {len(state.models)}, and not {len(objective.parts)}")
        if state.logits.numel():
            check_tensor("logits", state.logits, torch.float32, len(state.logits), objective.outputs)
        return state


def _unshared(batch: Batch, columns: LogSchema | None) -> Batch:
    """Return a batch whose fields that share another's vocabulary have keys with the numbers of their places."""
    if columns is None or not columns.shares:
        return batch
    keys, bags = batch.keys.clone(), list(batch.bags)
    for name in columns.shares:
        field = np.int64(columns.fields.index(name))
        if name in columns.lists:
            bag = bags[place := columns.lists.index(name)]
            bags[place] = replace(bag, keys=torch.from_numpy(moved(bag.keys.numpy(), field)))
        else:
            place = columns.single.index(name)
            keys[:, place] = torch.from_numpy(moved(keys[:, place].numpy(), field))
    return replace(batch, keys=keys, bags=tuple(bags))


def _joined(batch: Batch) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], int]:
    """The keys of all bags, where each row's begin `[lists, n + 1]`, and how many a row can have."""
    if not batch.bags:
        return np.zeros(0, np.uint64), np.zeros((0, len(batch) + 1), np.int64), 0
    keys = np.concatenate([bag.keys.numpy() for bag in batch.bags]).view(np.uint64)
    offsets = np.stack([bag.offsets.numpy() for bag in batch.bags])
    most = int(np.diff(offsets).max(axis=1, initial=0).sum())
    begins = np.cumsum([0, *(len(bag.keys) for bag in batch.bags[:-1])])
    return keys, offsets + begins[:, None], most


def predicting(model: Baseline, batches: Iterable[Batch], logits: list[Tensor]) -> Iterator[Batch]:
    """The batches, with the model's logits of each added to `logits`."""
    for batch in batches:
        logits.append(model.predict(batch))
        yield batch


PASSES = 3
"""Passes of a baseline over a log of up to `MOST_ROWS` training rows; one over a longer one."""

MOST_ROWS = 300_000


def after_more_passes(
    model: Baseline,
    first: Sequence[Tensor],
    passes: Iterable[Iterable[Batch]],
    test: Callable[[], Iterable[Batch]],
    window: PredictionWindow,
) -> npt.NDArray[np.float64]:
    """The baseline's predictions `[samples]` of the test rows, after the pass that is best on these: in its favour.

    Args:
        model: The baseline after its first pass, which is trained further.
        first: Its logits then of the test rows.
        passes: The batches of each further pass.
        test: Gives the test rows.
        window: Their labels.
    """
    found = [predictions_of(first, model.objective)]
    for batches in passes:
        for batch in batches:
            model.learn(batch)
        found.append(predictions_of([model.predict(batch) for batch in test()], model.objective))
    return min(found, key=lambda one: window.measured(one).loss)


_WAITING = 1 << 15
"""Samples that may wait."""


class BaselineCallback(Callback):
    """Trains a baseline, see `LinearBaseline`, on the batches of the first epoch; points have its AUC and log loss.

    It learns in a separate thread. On several ranks, each has a baseline that learns from its part of the rows.

    Args:
        model: The baseline, trained further; by default a new one.
    """

    def __init__(self, model: Baseline | None = None) -> None:
        self.model: Baseline = model or LinearBaseline()
        self._thread: ThreadPoolExecutor | None = None
        self._lessons: deque[Future[Tensor]] = deque()
        self._logits: list[Tensor] = []

    def on_begin(self, trainer: Trainer) -> None:
        self._thread = ThreadPoolExecutor(1, "sparsegroup-baseline")

    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        if trainer.progress.epoch or self._thread is None or not len(trained.batch):
            return
        self._lessons.append(self._thread.submit(self.model.learn, trained.batch))
        self._wait(max(1, _WAITING // len(trained.batch)))

    def on_window(self, trainer: Trainer, window: PredictionWindow) -> dict[str, float | None] | None:
        if trainer.progress.epoch:
            return None
        logits = trainer.ranks.all_gather([self._predictions()], "the baseline's predictions")
        self._logits = []
        if trainer.ranks.rank or sum(map(len, logits)) != window.samples:  # else training began without it
            return None
        found = window.measured(predictions_of(logits, self.model.objective))
        values = {f"baseline_{name}": getattr(found, name) for name in LOSSES[type(found)]}
        return {name: None if math.isnan(value) else value for name, value in values.items()}

    def on_end(self, trainer: Trainer) -> None:
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def state_dict(self) -> dict[str, Any]:
        logits = self._predictions()  # which waits until all is learnt
        return {**self.model.state_dict(), "logits": logits}

    def load_state_dict(self, trainer: Trainer, states: Sequence[Mapping[str, Tensor]]) -> None:
        logits = [self.model.window_of(state) for state in states]
        is_alike = len(states) == trainer.ranks.count
        rank = trainer.ranks.rank
        self.model.load_state_dict(*(states[rank : rank + 1] if is_alike else states))
        self._logits = logits[rank : rank + 1] if is_alike else [] if rank else logits

    def of_all_ranks(self, ranks: RankGroup) -> Baseline:
        """The baseline of all rows."""
        if ranks.is_alone:
            return self.model
        model = copy(self.model)
        model.load_state_dict(*ranks.all_gather([self.model.state_dict()], "baselines"))
        return model

    def _wait(self, most: int) -> None:
        """Wait until at most this many batches remain."""
        while len(self._lessons) > most:
            self._logits.append(self._lessons.popleft().result())

    def _predictions(self) -> Tensor:
        """Logits of all rows of the window so far, each from before it was learnt."""
        self._wait(0)
        return torch.cat(self._logits) if self._logits else torch.zeros(0)


def baseline_of(
    metadata: CheckpointMetadata, checkpoint: Path, network: nn.Module, objective: Objective
) -> Baseline | None:
    """The baseline of all ranks in a checkpoint of a network, or None; RunError if its state is damaged."""
    states = metadata.trainer.callbacks().get(BaselineCallback.__name__, [])
    if not states:
        return None
    if (baseline := baseline_for(objective, metadata.columns, pairs_of(network))) is None:
        return None
    try:
        baseline.load_state_dict(*states)
    except ValueError as error:
        raise RunError(f"{checkpoint}: damaged (state.extra.trainer.callbacks: {error})") from error
    return baseline
