"""What a run is compared with: a logistic regression on the same batches, learnt along the way."""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.data.batches import Batch
from sparsegroup.kernels.cpu.online_logistic import COUNT, MOMENTS, PARTS, PER_NUMBER, SQUARES, SUM, online_pass
from sparsegroup.rules.ftrl import FTRL
from sparsegroup.tensor_words import shape_of

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
