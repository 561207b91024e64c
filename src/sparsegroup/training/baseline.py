"""What a run is compared with: a logistic regression on the same batches, trained along the way."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup import prox
from sparsegroup.data.batches import Batch
from sparsegroup.kernels.cpu.jit import inline, jitted, kernel, prefetch
from sparsegroup.rules.ftrl import FTRL
from sparsegroup.tensors import shape_of
from sparsegroup.training.ranks import RankGroup

AHEAD = 2
"""Rows whose weights are asked for before they are needed."""

WEIGHT, RESIDUAL, SUM = 0, 1, 2
PARTS = 3
"""What is kept of a coordinate: x, u, and the rule's Σ g²."""

COUNT, MEAN, SQUARES = 0, 1, 2
MOMENTS = 3
"""What is kept of a number: how many there were, their mean, and the sum of their squared distances from it."""

PER_NUMBER = 3
"""Features made of a number: itself, standardized, and two buckets."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ over the golden ratio
_KIND = np.uint64(1) << np.uint64(48)
_LIMIT = 4.0
_STEPS = 4.0

_update = inline(FTRL.update)
_soft_threshold, _clip = inline(prox.soft_threshold), inline(prox.clip)
_closed_form, _next_residual = inline(prox.closed_form), inline(prox.next_residual)


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
            slots[count], values[count] = _slot(bag_keys[k], shift), 1.0 / (end - begin)
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


def _online_pass(
    keys: Any, bag_keys: Any, bag_offsets: Any, numbers: Any, bits: Any, labels: Any, weights: Any,
    memory: Any, moments: Any, slots: Any, values: Any, shift: Any,
    beta: Any, inverse_lr: Any, l1: Any, two_l2: Any, learns: Any, logits: Any,
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
        error = (1.0 / (1.0 + math.exp(-logit)) - labels[i]) * weights[i]
        for c in range(count):
            at = memory[slots[c]]
            m, sigma, total = _update(error * values[c], np.float64(at[SUM]), beta, inverse_lr)
            z = at[RESIDUAL] + m - sigma * at[WEIGHT]
            s = _soft_threshold(z, l1, 0.0)
            y = _closed_form(np.float64(at[WEIGHT]), s, 0.0, sigma + two_l2, 1.0, 0.0, 1.0)
            at[RESIDUAL] = _next_residual(_clip(z, l1), s, 0.0, y, two_l2, 0.0)
            at[WEIGHT], at[SUM] = y, total
        for j in range(numbers.shape[1]):
            if _is_finite(np.float64(numbers[i, j])):
                _note(np.float64(numbers[i, j]), moments[j])


online_pass = kernel(_online_pass, "the baseline")
"""Predict rows, and learn from each before the next one.

Args:
    keys: `[n, fields]` uint64.
    bag_keys, bag_offsets: `[m]` uint64 and `[lists, n + 1]` int64: row i of a list has the keys from `offsets[i]` on;
        each counts as one over how many there are.
    numbers, bits: `[n, numbers]` float32, and the same as uint32. What is not finite is missing.
    labels, weights: `[n]` float32.
    memory: `[2 ** bits + 1 + numbers, PARTS]` float32, zeros at first; changed if `learns`.
    moments: `[numbers, MOMENTS]` float64, zeros at first; changed if `learns`.
    slots, values: Scratch for the features of a row, int64 and float64.
    shift: uint64; 64 less the number of bits of a hash.
    beta, inverse_lr, l1, two_l2: float64.
    learns: Whether to.
    logits: `[n]` float32, written.
"""


HASH_BITS = 22
"""Features share 2²² weights: 48 MiB, of which those that no feature came to are never touched."""


class LogisticBaseline:
    """Logistic regression over hashed features by FTRL-Proximal, one row at a time (McMahan et al., KDD 2013).

    A key has a weight of its own but for chance collisions; of a bag, each counts as one over how many there are. A
    number is given three times: standardized by the mean and variance so far, within ±4; as a bucket of its logarithm,
    eight to the octave; and as a bucket of a quarter of a standard deviation. What is not finite is missing, which has
    a weight.

    Args:
        lr: Learning rate; None is 2 over the number of features of a row.
        beta, l1, l2: See `GroupFTRL`; λ1 and λ2 hold for each weight.

    Raises:
        ValueError: A hyperparameter out of its range.

    Examples:
        >>> import torch
        >>> from sparsegroup.training.evaluation import as_batch
        >>> baseline = LogisticBaseline()
        >>> keys = torch.randint(50, (2_000, 3)) + torch.tensor([0, 50, 100])  # no key in two fields
        >>> labels = (keys[:, 0] < 25).float()
        >>> _ = baseline.learn(as_batch((keys, labels)))
        >>> logits = baseline.predict(as_batch((keys, labels)))
        >>> bool(((logits > 0) == (labels > 0)).all())
        True
    """

    def __init__(self, *, lr: float | None = None, beta: float = 0.3, l1: float = 0.0, l2: float = 0.0) -> None:
        hyperparameters = {"lr": lr or 1.0, "beta": beta, "initial_accumulator_value": 0.0, "weight_decay": 0.0}
        FTRL.check(hyperparameters, "the baseline")
        self._lr, self._hyperparameters, self._l1, self._two_l2 = lr, hyperparameters, float(l1), 2.0 * l2
        self._memory: npt.NDArray[np.float32] | None = None
        self._moments = np.zeros((0, MOMENTS))

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
        """Places `[m]` int32 of the weights that were learnt, what is kept of each `[m, 3]`, and of the numbers."""
        memory = np.zeros((0, PARTS), np.float32) if self._memory is None else self._memory
        places = np.flatnonzero(memory[:, SUM])
        return {
            "places": torch.from_numpy(places.astype(np.int32)),
            "weights": torch.from_numpy(memory[places]),
            "moments": torch.from_numpy(self._moments.copy()),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from where `state_dict` found another with the same arguments.

        Raises:
            ValueError: It is no such state; nothing has changed.
        """
        check_baseline_state(state)
        self._moments = state["moments"].numpy().copy()
        self._memory = self._new_memory() if len(state["places"]) else None  # of one that has learnt, the bias is there
        if self._memory is not None:
            self._memory[state["places"].numpy()] = state["weights"].numpy()

    def _new_memory(self) -> npt.NDArray[np.float32]:
        return np.zeros(((1 << HASH_BITS) + 1 + len(self._moments), PARTS), np.float32)

    def _pass(self, batch: Batch, *, learns: bool) -> Tensor:
        batch = batch.for_device(torch.device("cpu"))
        rows, numbers = batch.numbers.shape
        keys = np.ascontiguousarray(batch.keys.cpu().numpy()).view(np.uint64)
        keys = keys.reshape(rows, math.prod(keys.shape[1:]))
        if self._memory is None:
            self._moments = np.zeros((numbers, MOMENTS))
            self._memory = self._new_memory()
        if len(self._moments) != numbers:
            raise ValueError(f"the baseline has learnt from rows of {len(self._moments)} numbers, got {numbers}")
        given = np.ascontiguousarray(batch.numbers.numpy(), np.float32)
        weights = np.ones(rows, np.float32) if batch.weights is None else batch.weights.numpy()
        bag_keys, bag_offsets, most = _joined(batch)
        features = keys.shape[1] + PER_NUMBER * numbers
        lr = self._lr or 2.0 / max(1, features + len(batch.bags))
        logits = np.empty(rows, np.float32)
        online_pass(
            keys,
            bag_keys,
            bag_offsets,
            given,
            given.view(np.uint32),
            np.ascontiguousarray(batch.labels.numpy(), np.float32),
            np.ascontiguousarray(weights, np.float32),
            self._memory,
            self._moments,
            np.empty(1 + features + most, np.int64),
            np.empty(1 + features + most),
            np.uint64(64 - HASH_BITS),
            *FTRL.host_scalars(self._hyperparameters, 1, lr),
            self._l1,
            self._two_l2,
            learns,
            logits,
        )
        return torch.from_numpy(logits)


def check_baseline_state(state: Mapping[str, Tensor]) -> None:
    """Raise ValueError, whose message begins with the field, unless `LogisticBaseline.state_dict` can have given it."""
    if missing := {"places", "weights", "moments"} ^ state.keys():
        raise ValueError(f"baseline.{min(missing)}: places, weights and moments are expected")
    places, weights, moments = (state[name] for name in ("places", "weights", "moments"))
    numbers = len(moments) if moments.ndim else 0
    for name, dtype, shape in (
        ("places", torch.int32, places.shape[:1]),
        ("weights", torch.float32, (*places.shape[:1], PARTS)),
        ("moments", torch.float64, (numbers, MOMENTS)),
    ):
        tensor = state[name]
        if tensor.dtype != dtype or not tensor.ndim or tensor.shape != shape:
            expected = shape_of(torch.empty(shape, dtype=dtype, device="meta"))
            raise ValueError(f"baseline.{name}: {expected} are expected, got {shape_of(tensor)}")
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"baseline.{name}: has numbers that are not finite")
    end = (1 << HASH_BITS) + 1 + numbers
    if len(places) and not 0 <= int(places.min()) <= int(places.max()) < end:
        raise ValueError(f"baseline.places: {int(places.min())} to {int(places.max())} are not within 0 to {end - 1}")
    if bool((weights[:, SUM] < 0).any()) or bool((moments[:, [COUNT, SQUARES]] < 0).any()):
        raise ValueError("baseline: a sum of squares or a count is below 0")


def _joined(batch: Batch) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], int]:
    """The keys of all bags, where each row's begin `[lists, n + 1]`, and how many a row can have."""
    if not batch.bags:
        return np.zeros(0, np.uint64), np.zeros((0, len(batch) + 1), np.int64), 0
    keys = np.concatenate([bag.keys.numpy() for bag in batch.bags]).view(np.uint64)
    offsets, begin, most = [], 0, 0
    for bag in batch.bags:
        own = bag.offsets.numpy()
        offsets.append(own + begin)
        begin += len(bag.keys)
        most += int(np.diff(own).max(initial=0))
    return keys, np.stack(offsets), most


def merged_baseline(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The state of a baseline whose weights are the means of those of several.

    A weight counts by its sum of squared gradients, so that a feature that one of them has seen alone keeps its weight:
    the mean of models that were trained on parts (Zinkevich et al., NeurIPS 2010), by what each knows of a feature. The
    sums add up. The moments of numbers are those of all rows (Chan, Golub and LeVeque 1983).

    Examples:
        >>> import torch
        >>> from sparsegroup.training.baseline import merged_baseline
        >>> def state(*weights):
        ...     places = torch.arange(len(weights), dtype=torch.int32)
        ...     return {"places": places, "weights": torch.tensor(weights), "moments": torch.zeros(0, 3).double()}
        >>> merged_baseline([state([1.0, 0.0, 3.0]), state([5.0, 0.0, 1.0], [2.0, 0.0, 1.0])])["weights"].tolist()
        [[2.0, 0.0, 4.0], [2.0, 0.0, 1.0]]
    """
    places = np.unique(np.concatenate([state["places"].numpy() for state in states]))
    sums = np.zeros((len(places), PARTS))
    for state in states:
        at, weights = np.searchsorted(places, state["places"].numpy()), state["weights"].double().numpy()
        share = weights[:, SUM : SUM + 1]
        sums[at] += weights * share
        sums[at, SUM] += share[:, 0] - weights[:, SUM] * share[:, 0]
    total = sums[:, SUM : SUM + 1].copy()
    merged = np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)
    merged[:, SUM] = total[:, 0]
    return {
        "places": torch.from_numpy(places),
        "weights": torch.from_numpy(merged.astype(np.float32)),
        "moments": torch.from_numpy(_moments([state["moments"].numpy() for state in states])),
    }


def _moments(parts: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    known = [part for part in parts if len(part)]  # one that has seen no row knows of no numbers
    result = np.zeros((len(known[0]) if known else 0, MOMENTS))
    for part in known:
        count = result[:, COUNT] + part[:, COUNT]
        share = np.divide(part[:, COUNT], count, out=np.zeros_like(count), where=count > 0)
        distance = part[:, MEAN] - result[:, MEAN]
        result[:, SQUARES] += part[:, SQUARES] + distance**2 * result[:, COUNT] * share
        result[:, MEAN] += distance * share
        result[:, COUNT] = count
    return result


_WAITING = 1 << 15
"""Samples that may wait."""


class BaselineLessons:
    """Trains a baseline in another thread; None is not trained."""

    def __init__(self, baseline: LogisticBaseline | None) -> None:
        self.baseline = baseline
        self._waiting: deque[Future[None]] = deque()

    def give(self, thread: ThreadPoolExecutor, batch: Batch, take: Callable[[Tensor], None]) -> None:
        """Let `thread` train on a batch, in order, before a window's metrics; `take` gets the logits."""
        if (baseline := self.baseline) is None or not len(batch):
            return
        self._waiting.append(thread.submit(lambda: take(baseline.learn(batch))))
        while len(self._waiting) > max(1, _WAITING // len(batch)):
            self._waiting.popleft().result()

    def wait(self) -> None:
        """Until all is learnt."""
        while self._waiting:
            self._waiting.popleft().result()

    def merge(self, ranks: RankGroup) -> None:
        """Let all ranks have one baseline, of what each has taught its own; see `merged_baseline`."""
        if self.baseline is not None and not ranks.is_alone:
            self.baseline.load_state_dict(merged_baseline(ranks.all_gather([self.baseline.state_dict()], "baselines")))

    def state_dict(self) -> dict[str, Any] | None:
        """The baseline's, when all is learnt; None without one."""
        self.wait()
        return None if self.baseline is None else self.baseline.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Continue from a state; None, of a training without a baseline, drops the baseline."""
        if state is None:
            self.baseline = None
        elif self.baseline is not None:
            self.baseline.load_state_dict(state)
