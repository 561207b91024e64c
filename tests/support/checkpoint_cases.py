"""What the tests of checkpoints share: a training with tables here and there, and all that is to be known of it."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from forgery import write_sealed
from sparsegroup import GroupAdaHessian, GroupAdam, HashEmbedding
from sparsegroup.checkpoint import Checkpoints, LoadResult, load_checkpoint, save_checkpoint
from sparsegroup.checkpoint.manifest import CHECKPOINT, CheckpointManifest

MANIFEST, STATE, TABLE = "checkpoint.json", "state.safetensors", "table-users.safetensors"
LAMBDAS = {"l1": 1e-4, "l21": 3e-3}


class Clicks(nn.Module):
    """Two tables, one of them deep inside, and a network with dropout over their vectors."""

    def __init__(self, dim: int = 3, seed: int = 0, dtype: torch.dtype = torch.float32, hidden: int = 4) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.users = HashEmbedding(dim, seed=seed, dtype=dtype, field_bits=2)
        self.deep = nn.ModuleDict({"of/items": nn.ModuleList([HashEmbedding(2 * dim, seed=seed, dtype=dtype)])})
        self.network = nn.Sequential(
            nn.Linear(3 * dim, hidden, dtype=dtype), nn.Dropout(0.3), nn.ReLU(), nn.Linear(hidden, 1, dtype=dtype)
        )

    def forward(self, keys: Tensor) -> Tensor:
        items: Any = self.deep["of/items"]
        logits: Tensor = self.network(torch.cat([self.users(keys), items[0](keys * 7 + 1)], dim=1))[:, 0]
        return logits


@dataclass
class Training:
    """A model, its optimizers, and the keys that it is trained on, drawn from a generator of its own."""

    model: nn.Module
    optimizers: Sequence[Optimizer]
    scheduler: LRScheduler | None = None
    draw: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def keys(self, count: int = 6, among: int = 40) -> Tensor:
        return torch.randint(-among, among, (count,), generator=self.draw)

    def step(self, keys: Tensor | None = None) -> Tensor:
        """Train on some keys; returns them."""
        keys = self.keys() if keys is None else keys
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        logits = self.model(keys)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, (keys % 2 == 0).to(logits.dtype))
        hessian = any(isinstance(optimizer, GroupAdaHessian) for optimizer in self.optimizers)
        loss.backward(create_graph=hessian)  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss.detach())
        elif self.scheduler is not None:
            self.scheduler.step()
        return keys

    def save(self, folder: Path, **options: Any) -> CheckpointManifest:
        return save_checkpoint(folder, self.model, self.optimizers, self.scheduler, **options)

    def load(self, folder: Path, **options: Any) -> LoadResult:
        return load_checkpoint(folder, self.model, self.optimizers, self.scheduler, **options)

    @property
    def tables(self) -> list[HashEmbedding]:
        return [module for module in self.model.modules() if isinstance(module, HashEmbedding)]

    def facts(self) -> dict[str, Any]:
        """All that a checkpoint brings back, to the last bit and the order of the rows."""
        return {
            "tables": [facts_of(table) for table in self.tables],
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "generators": [
                generator.get_state()
                for optimizer in self.optimizers
                if (generator := getattr(optimizer, "generator", None)) is not None
            ],
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "rng": torch.get_rng_state(),
        }


def clicks(
    make: Callable[..., Optimizer] = GroupAdam, *, seed: int = 0, lambdas: dict[str, Any] = LAMBDAS, **shape: Any
) -> Training:
    """A training of `Clicks`."""
    model = Clicks(seed=seed, **shape)
    return Training(model, [make(model.parameters(), lr=0.05, **lambdas)])


def facts_of(table: HashEmbedding) -> dict[str, Any]:
    """Of a table, copied."""
    return {
        **table.table.snapshot().arrays(),
        "dropped": table.table.directory.dropped.copy(),
        "counts": (table.num_rows, table.num_seen, table.num_live, table.skipped_rows),
        "memory": replace(table.memory(), scratch=0),  # scratch is of the last lookups
        "parts": dict(table.table.rows.initial),
    }


def bits(value: Any) -> Any:
    """`value` with its tensors as dtype, shape and bytes, to be compared by == to the last bit, NaN and -0 included."""
    if isinstance(value, Tensor):
        whole = value.detach()
        numbers = (whole.view(torch.int16) if whole.dtype == torch.bfloat16 else whole).numpy()  # which has no bfloat16
        return str(whole.dtype), tuple(whole.shape), numbers.tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return type(value).__name__, {name: bits(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value).__name__, [bits(item) for item in value]
    return repr(value) if isinstance(value, float) else value


def fresh_facts(path: Path) -> Any:
    """What a new training of `clicks` has when it has loaded a checkpoint; the random numbers stay as they are."""
    rng = torch.get_rng_state()
    training = clicks()
    training.load(path)
    facts = bits(training.facts())
    torch.set_rng_state(rng)
    return facts


@contextmanager
def unchanged(training: Training) -> Iterator[None]:
    """Nothing of the training is other than before."""
    before = bits(training.facts())
    yield
    assert bits(training.facts()) == before


def write_chain(folder: Path) -> Path:
    """A folder with a checkpoint of all rows and two of changes."""
    training = clicks()
    checkpoints = Checkpoints(folder, keep=3)
    training.step(torch.arange(40))
    for step in (1, 2, 3):
        checkpoints.save(step, training.model, training.optimizers, extra={"at": step})
        training.step()
        assert training.tables[0].shrink() + training.tables[1].shrink() or step > 1
    parents = [CHECKPOINT.read(path).parent for path in checkpoints.paths()]
    assert [parent is None for parent in parents] == [True, False, False]
    return checkpoints.folder


def last(folder: Path) -> Path:
    return Checkpoints(folder).paths()[-1]


def forge(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the content of the manifest, and its checksum with it."""
    path = checkpoint / MANIFEST
    content = json.loads(path.read_text())
    change(content)
    write_sealed(path, content)
