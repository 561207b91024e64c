"""Trainings by a `Trainer` on the ranks of a world, and the same on one process."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from following import Each
from sharded_cases import rows_of
from sparsegroup import FieldTables, GroupAdam, HashEmbedding, MinCount, TargetRate, param_groups
from sparsegroup.data.batches import Batch
from sparsegroup.models import MLP, NumberEncoder, WithNumbers
from sparsegroup.objectives import LOGISTIC, Objective, Softmax, Tasks
from sparsegroup.table.field_tables import tables_in
from sparsegroup.training import Callback, HistoryPoint, Trainer
from sparsegroup.training.baseline import BaselineCallback, baseline_for

FIELDS, DIM, ROWS = 3, 4, 40
ALL_BATCHES = (99,) * 4
OWN = ("seconds", "samples_per_s", "table_bytes", "baseline_auc", "baseline_log_loss", "baseline_loss", "tasks")
"""What ranks have otherwise than one process, and tasks' measures, which a loss sums up."""


@dataclass(frozen=True)
class TrainerCase:
    """A training.

    Attributes:
        shares: How the rows of a batch are cut, by the shares of four ranks; two take the first and the rest.
        steps: Batches.
        table: Arguments of the table.
        sizes: Those of the fields' vectors, if they differ.
        rate: The live share that a target asks for.
        weighted: Whether rows have weights.
        numbers: Columns of numbers, which an encoder standardizes.
        normalized: Whether the network has torch's batch normalization.
        objective: What is learnt of labels 0 and 1; of two tasks, also of what is not the label, where it is known.
    """

    shares: tuple[float, float, float, float] = (0.25, 0.25, 0.25, 0.25)
    steps: int = 12
    table: dict[str, Any] = field(default_factory=dict)
    sizes: dict[int, int] | None = None
    rate: float | None = None
    weighted: bool = False
    numbers: int = 0
    normalized: bool = False
    objective: Objective = LOGISTIC


CASES = {
    "uneven": TrainerCase(shares=(0.1, 0.5, 0.3, 0.1), weighted=True, sizes={0: 2, 1: 4, 2: 4}),
    "some have none": TrainerCase(shares=(0.0, 0.7, 0.0, 0.3), table={"admission": MinCount(2)}),
    "fallback and target": TrainerCase(table={"fallback": True}, rate=0.4),
    "sums": TrainerCase(table={"reduction": "sum"}),
    "numbers": TrainerCase(shares=(0.1, 0.5, 0.3, 0.1), numbers=2),
    "classes": TrainerCase(shares=(0.0, 0.5, 0.4, 0.1), weighted=True, objective=Softmax(classes=2)),
    "tasks": TrainerCase(shares=(0.1, 0.5, 0.4, 0.0), objective=Tasks(weights=(1, 0.5))),
}


def global_batches(case: TrainerCase) -> list[Batch]:
    """The last one is shorter."""
    draw = torch.Generator().manual_seed(5)
    batches = []
    for step in range(case.steps):
        rows = ROWS if step < case.steps - 1 else ROWS // 2
        keys = torch.randint(0, 60, (rows, FIELDS), generator=draw) + (torch.arange(FIELDS) << 56)
        labels = (torch.rand(rows, generator=draw) < 0.2 + 0.3 * (keys[:, 0] % 3 == 0)).float()
        if case.objective.tasks:
            unknown = torch.rand(rows, generator=draw) < 0.3
            labels = torch.stack([labels, (1 - labels).masked_fill(unknown, torch.nan)], dim=1)
        weights = torch.rand(rows, generator=draw) + 0.5 if case.weighted else None
        numbers = 1e4 + torch.randn(rows, case.numbers, generator=draw)
        numbers[:, :1] += 100 * step  # beyond the reach of the mean so far
        numbers[::7, 1:] = torch.nan
        batches.append(Batch(keys, numbers, labels, torch.zeros(rows, dtype=torch.int64), weights))
    return batches


def part_of(case: TrainerCase, batch: Batch, rank: int, ranks: int) -> Batch:
    shares = case.shares if ranks == 4 else (case.shares[0], sum(case.shares[1:]))
    edges = [round(sum(shares[:number]) * len(batch)) for number in range(ranks + 1)]
    return batch[edges[rank] : edges[rank + 1]]


def own_batches(case: TrainerCase, ends: Sequence[int]) -> Iterator[Batch]:
    """This rank's parts, as many as `ends` says for it."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    for step, batch in enumerate(global_batches(case)):
        if step < ends[rank]:
            yield batch if ranks == 1 else part_of(case, batch, rank, ranks)


class Points(Callback):
    """Keeps the samples of the points that it gets."""

    def __init__(self) -> None:
        self.samples: list[int] = []

    def on_point(self, trainer: Trainer, point: HistoryPoint) -> None:
        self.samples.append(point.samples)


def new_trainer(case: TrainerCase) -> Trainer:
    torch.manual_seed(3 + (dist.get_rank() if dist.is_initialized() else 0))  # networks are made equal by the trainer
    model: nn.Module = MLP(FIELDS + case.numbers, DIM, case.numbers, hidden=(8,), outputs=case.objective.outputs)
    if case.normalized:
        model.hidden.append(nn.BatchNorm1d(8))
    if case.numbers:
        model = WithNumbers(NumberEncoder(case.numbers, DIM, 4), model)
    options = {"std": 0.1, "field_bits": 8, **case.table}
    if dist.is_initialized():
        options["process_group"] = dist.group.WORLD
    else:
        options.pop("reduction", None)
    torch.manual_seed(9)
    if case.sizes is None:
        embedding: Any = HashEmbedding(DIM, **options)
    else:
        embedding = FieldTables(DIM, case.sizes, **options)
    groups = [*param_groups(embedding, l21=1e-3, named=False), {"params": model.parameters()}]
    optimizer = GroupAdam(groups, lr=0.01)
    target = None if case.rate is None else TargetRate(optimizer, case.rate, steps=case.steps, interval=2)
    baseline = BaselineCallback(baseline_for(case.objective))
    how: dict[str, Any] = {"objective": case.objective, "window": 3 * ROWS, "target": target}
    return Trainer(embedding, model, optimizer, callbacks=[baseline], **how)


def outcome(trainer: Trainer) -> dict[str, Any]:
    """The network, the rows of this rank, and the history but for what the clock says."""
    history = [
        {name: value for name, value in vars(point).items() if name not in OWN and value is not None}
        for point in trainer.history
    ]
    rows: dict[tuple[str, int], Tensor] = {}
    for name, table in tables_in(trainer.table).items():
        rows |= {(name, key): row for key, row in rows_of(table).items()}
    network = torch.cat([value.flatten().double() for value in trainer.network.state_dict().values()])
    encoder = trainer.network.encoder.state_dict() if isinstance(trainer.network, WithNumbers) else None
    result = {"network": network, "rows": rows, "history": history, "samples": trainer.samples}
    return result | {"own": trainer.trained, "encoder": encoder}


def trained(case: TrainerCase, ends: Sequence[int] = ALL_BATCHES) -> dict[str, Any]:
    trainer, points = new_trainer(case), Points()
    trainer.callbacks.append(points)
    trainer.fit(own_batches(case, ends))
    metrics = trainer.evaluate(own_batches(case, ends))
    return outcome(trainer) | {"auc": getattr(metrics, "auc", metrics.loss), "reported": points.samples}


def cut_off_and_resumed(case: TrainerCase, at: int) -> dict[str, Any]:
    """Stopped by the last rank after so many batches, and resumed by another trainer of the same rows."""
    first = new_trainer(case)
    last = not dist.is_initialized() or dist.get_rank() == dist.get_world_size() - 1
    first.callbacks.append(Each(rest=lambda trainer: trainer.stop() if last and trainer.progress.steps == at else None))
    first.fit(own_batches(case, ALL_BATCHES))
    state = first.ranks.broadcast(first.network.state_dict(), "the network")
    first.network.load_state_dict(state)  # as a checkpoint holds it
    how: dict[str, Any] = {"window": 3 * ROWS, "target": first.target, "callbacks": [BaselineCallback()]}
    second = Trainer(first.table, first.network, first.optimizers, **how)
    second.load_state_dict(first.ranks.broadcast(first.state_dict(), "the state"))
    left = list(own_batches(case, ALL_BATCHES))[first.progress.steps :]
    assert second.taken == first.taken
    compiled_for = [[one["compiled_for"] for one in of.state_dict()["ranks"]] for of in (first, second)]
    assert compiled_for[0] == compiled_for[1]
    second.fit(left)
    return outcome(second) | {"auc": second.evaluate(own_batches(case, ALL_BATCHES)).auc, "own": 0}


def refused() -> str:
    """What a trainer says to tables of which some lie on ranks and others do not."""
    model = MLP(fields=FIELDS, dim=DIM, hidden=(8,))
    table = torch.nn.ModuleList([HashEmbedding(4, process_group=dist.group.WORLD), HashEmbedding(4)])
    try:
        Trainer(table, model, [])  # type: ignore[arg-type]
    except ValueError as error:
        return str(error)
    return ""


def failing(case: TrainerCase, diverges: bool) -> tuple[str, set[float], bool]:
    """What a rank raises where one's stream cannot be read, or its network gives NaN; its step; are rows finite?"""
    trainer = new_trainer(case)

    def stream() -> Iterator[Batch]:
        for step, batch in enumerate(own_batches(case, ALL_BATCHES)):
            if step == 4 and dist.get_rank() == 1:  # the fourth batch is yet to be trained on
                if not diverges:
                    raise ValueError("line 7 is damaged")
                trainer.optimizers[0].param_groups[-1]["params"][0].data.fill_(float("nan"))
            yield batch

    error = ""
    try:
        trainer.fit(stream())
    except (ValueError, RuntimeError, FloatingPointError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    steps = {float(state["step"]) for state in trainer.optimizers[0].state.values()}
    return error, steps, bool(all(torch.isfinite(row).all() for row in rows_of(trainer.table).values()))
