"""What state in bfloat16 does to a click model's AUC and feature rate, and what the stochastic rounding is worth there.

DCN over `nn.Embedding(sparse=True)`, one pass in the log's order, the same operations, starts and order for each of

    float32     u and the moments of the embedding in float32
    stochastic  state_dtype=torch.bfloat16: rounded up or down by chance
    nearest     the same rounded to the nearest, which the library does not offer

Weights, and the network's state, are float32 in all of them. λ21 is 0 (then there is no u), or what leaves 5 to 20 % of
the rows alive in float32, found by bisection on the first seed. A figure is the mean over seeds, which draw the start
alone: the log, its order and its test rows stay. Differences are to float32 with the same seed, ± their standard error.
Features that are only in the test rows have vectors of zeros.

    python benchmarks/state_dtype.py
    python benchmarks/state_dtype.py --data synthetic train.txt    # the synthetic log, then a log of one's own
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from sparsegroup import GroupAdagrad, GroupAdam, feature_rate, param_groups
from sparsegroup.data import SyntheticConfig, open_log, synthetic_log
from sparsegroup.data.batches import Batch
from sparsegroup.data.log import Log
from sparsegroup.kernels import rounding
from sparsegroup.models import DCN
from sparsegroup.optim import GroupOptimizer
from sparsegroup.training.metrics import evaluate

SYNTHETIC = "synthetic"
BATCH, DIM, STD = 64, 8, 0.01
OPTIMIZERS: Mapping[str, Callable[..., GroupOptimizer]] = {
    "adam": partial(GroupAdam, lr=3e-3),
    "adagrad": partial(GroupAdagrad, lr=3e-2),
}
BAND = (0.05, 0.2)
"""Feature rates to be had by λ21."""

STRENGTHS = (1e-8, 1.0)
"""Between which that λ21 is looked for."""


def to_nearest(values: Tensor, elements: Tensor, seed: int | Tensor, part: int) -> Tensor:
    """In the place of `rounding.to_bfloat16`."""
    return values.to(torch.bfloat16)


STATES: Mapping[str, tuple[torch.dtype, Callable[[], AbstractContextManager[object]]]] = {
    "float32": (torch.float32, nullcontext),
    "stochastic": (torch.bfloat16, nullcontext),
    "nearest": (torch.bfloat16, lambda: mock.patch.object(rounding, "to_bfloat16", to_nearest)),
}


@dataclass(frozen=True)
class Data:
    """A log in memory.

    Attributes:
        name: In the figures.
        features: Distinct features in the training rows.
        train: Its keys are numbers from 0 to `features` - 1.
        test: Likewise; `features` is any feature that the training rows have not.
    """

    name: str
    features: int
    train: Batch
    test: Batch

    @classmethod
    def of(cls, name: str, log: Log) -> "Data":
        if log.lists:
            raise ValueError(f"{log.name}: a field of several values, {log.lists[0]}, cannot be had here")
        rows = next(log.batches(0, len(log), len(log)))
        if rows.weights is not None:
            raise ValueError(f"{log.name}: rows have weights, which are not counted here")
        known, ids = torch.unique(rows.keys[: log.train_rows], return_inverse=True)
        found = torch.searchsorted(known, rows.keys).clamp(max=len(known) - 1)
        ids = torch.where(known[found] == rows.keys, found, len(known))
        numbered = Batch(ids, rows.numbers, rows.labels, rows.times)
        return cls(name, len(known), numbered[: log.train_rows], numbered[log.train_rows :])


class Model(nn.Module):
    """DCN over `nn.Embedding`."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.embedding = nn.Embedding(data.features + 1, DIM, sparse=True, padding_idx=data.features)
        nn.init.normal_(self.embedding.weight[:-1], std=STD)
        self.network = DCN(data.train.keys.shape[1], DIM, data.train.numbers.shape[1])

    def forward(self, batch: Batch) -> Tensor:
        logits: Tensor = self.network(self.embedding(batch.keys), batch.numbers if batch.numbers.shape[1] else None)
        return logits


@dataclass(frozen=True)
class Outcome:
    auc: float
    feature_rate: float


def check_state(optimizer: GroupOptimizer, model: Model, dtype: torch.dtype, carries_u: bool) -> None:
    """The embedding's state is of `dtype`, with u or without; the network's is float32."""
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        is_embedding = parameter is model.embedding.weight
        parts = {*optimizer.rule.state, *(["u"] if carries_u and is_embedding else [])}
        found = {part: tensor.dtype for part, tensor in state.items() if part != "step"}
        expected = dict.fromkeys(parts, dtype if is_embedding else torch.float32)
        assert found == expected, f"{name}: {found} instead of {expected}"


def train(data: Data, optimizer: str, state: str, l21: float, seed: int) -> Outcome:
    dtype, rounded = STATES[state]
    torch.manual_seed(seed)
    model = Model(data)
    # PyTorch's own operations for float32, too, as bfloat16 gets them on the CPU.
    stepper = OPTIMIZERS[optimizer](param_groups(model, l21=l21, state_dtype=dtype, fused=False))
    with rounded():
        for first in range(0, len(data.train), BATCH):
            batch = data.train[first : first + BATCH]
            stepper.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(model(batch), batch.labels).backward()
            stepper.step()
    check_state(stepper, model, dtype, carries_u=l21 > 0)
    with torch.no_grad():
        probabilities = model(data.test).sigmoid().double().numpy()
    rate = feature_rate(model.embedding.weight[:-1])
    return Outcome(evaluate(data.test.labels.numpy(), probabilities).auc, rate)


def strength(data: Data, optimizer: str) -> float:
    """A λ21, to one digit, that leaves a share of the rows in `BAND`."""
    low, high = map(math.log10, STRENGTHS)
    for _ in range(12):
        middle = (low + high) / 2
        l21 = float(f"{10**middle:.0e}")
        rate = train(data, optimizer, "float32", l21, 0).feature_rate
        if BAND[0] <= rate <= BAND[1]:
            return l21
        low, high = (middle, high) if rate > BAND[1] else (low, middle)
    raise ValueError(f"{data.name}: no l21 in {STRENGTHS} leaves {BAND} of the rows with {optimizer}")


def standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def compare(data: Data, optimizer: str, l21: float, seeds: int) -> dict[str, float]:
    """Figures of each kind of state, printed as they come."""
    figures: dict[str, float] = {}
    exact: list[Outcome] = []
    for state in STATES:
        outcomes = [train(data, optimizer, state, l21, seed) for seed in range(seeds)]
        exact = exact or outcomes
        aucs = [outcome.auc for outcome in outcomes]
        differences = [outcome.auc - other.auc for outcome, other in zip(outcomes, exact, strict=True)]
        auc, rate = float(np.mean(aucs)), float(np.mean([outcome.feature_rate for outcome in outcomes]))
        figures |= {f"{state}.auc": auc, f"{state}.feature_rate": rate}
        line = f"{data.name:<17}{optimizer:<9}{l21:<9g}{state:<12}{auc:.5f}"
        if state == "float32":
            figures[f"{state}.auc_standard_error"] = standard_error(aucs)
            line += f"{'':>22}"
        else:
            difference, error = float(np.mean(differences)), standard_error(differences)
            figures |= {f"{state}.auc_difference": difference, f"{state}.auc_difference_standard_error": error}
            line += f"{difference:>+11.5f} ± {error:.5f} "
        print(f"{line}{rate:>10.4f}", flush=True)
    return figures


def open_data(name: str, rows: int) -> Data:
    if name == SYNTHETIC:
        return Data.of(name, synthetic_log(SyntheticConfig(rows=rows)))
    path = Path(name)
    return Data.of(path.name.split(".")[0], open_log(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", metavar="FILE", default=[SYNTHETIC], help=f"logs; default: {SYNTHETIC}")
    parser.add_argument("--rows", type=int, help="of the synthetic log; default: 75,000")
    parser.add_argument("--seeds", type=int, help="at least 2; default: 5")
    parser.add_argument("--quick", action="store_true", help="20,000 rows of the synthetic log and 2 seeds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as a flat object")
    arguments = parser.parse_args()
    rows = arguments.rows or (20_000 if arguments.quick else 75_000)
    seeds = arguments.seeds or (2 if arguments.quick else 5)
    if seeds < 2:
        parser.error("--seeds must be at least 2: one has no standard error")
    torch.set_num_threads(1)
    print(f"{'log':<17}{'rule':<9}{'l21':<9}{'state':<12}{'AUC':<7}{'difference':>12}{'':>10}{'live rows':>10}")
    figures: dict[str, float] = {}
    for name in arguments.data:
        data = open_data(name, rows)
        begin = perf_counter()
        for optimizer in OPTIMIZERS:
            for kind, l21 in (("plain", 0.0), ("l21", strength(data, optimizer))):
                found = {"lambda": l21, **compare(data, optimizer, l21, seeds)}
                figures |= {f"{data.name}.{optimizer}.{kind}.{figure}": value for figure, value in found.items()}
        seen = f"{len(data.train):,} training rows, {data.features:,} features, {len(data.test):,} test rows"
        print(f"{data.name}: {seen}; {perf_counter() - begin:.0f} s", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
