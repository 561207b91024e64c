"""Saving a checkpoint: the whole state of a training, as the files of one folder."""

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sparsegroup.artifact.folder import atomic_folder
from sparsegroup.artifact.manifest import FileFacts, Parent
from sparsegroup.artifact.tensor_file import write_tensors
from sparsegroup.checkpoint.manifest import (
    CHECKPOINT,
    STATE,
    CheckpointError,
    CheckpointManifest,
    CheckpointRanks,
    Optimizers,
    SavedOptimizer,
    SavedRank,
    SavedState,
    kind_of,
    listed,
    versions,
)
from sparsegroup.checkpoint.plain import as_plain, rng_state
from sparsegroup.optim import GroupOptimizer
from sparsegroup.optim.table_parameter import rows_left_out
from sparsegroup.table.files.write import TableFacts, write_table
from sparsegroup.table.table import tables_at_rest


def save_checkpoint(
    folder: str | Path,
    model: nn.Module,
    optimizer: Optimizers = None,
    scheduler: LRScheduler | None = None,
    *,
    step: int = 0,
    extra: Any = None,
    parent: str | Path | None = None,
    track: bool = False,
    sweep: bool = False,
) -> CheckpointManifest:
    """Write the state of a training into `folder`, which appears when all of it is on disk.

    It holds the model with the rows of its tables (vectors, u and moments), the optimizers' state and settings, the
    scheduler's, the random number generators' (torch's, NumPy's, Python's), the versions, and `extra`. The rows are
    written from where they are, in pieces: this takes 5 % of the table's memory in addition, at least 8 MiB.

    Args:
        folder: New.
        model: Its `HashEmbedding`s may be anywhere in it.
        optimizer: One, several, or none.
        scheduler: The scheduler of the learning rate.
        step: The training step.
        extra: What else to save: numbers, texts, tensors, lists and mappings of them.
        parent: The last checkpoint of the model, written with `track`, a neighbour of the new one. Only what has
            changed in the tables since is written.
        track: Let the tables record from now on what changes.
        sweep: Apply the closed form to all rows first, see `GroupOptimizer.sweep`; what is trained afterwards differs
            by it.

    Raises:
        CheckpointError: The folder exists, something can only be pickled, or the tables have not been tracked since
            `parent`.
        OSError: The disk is full, say. No folder is left behind.
    """
    folder, optimizers = Path(folder), listed(optimizer)
    ranks = CheckpointRanks(model, "writing a checkpoint")
    before = ranks.do(lambda: _parent(folder, ranks, parent))
    if not ranks.agree_on(before):
        raise CheckpointError(f"{folder}: follows another checkpoint on each rank, or none on some: give all the same")
    for one in optimizers if sweep else ():
        if isinstance(one, GroupOptimizer):
            one.sweep()
    state = _state(ranks, model, optimizers, scheduler, extra)

    def finish() -> CheckpointManifest | None:
        if ranks.rank:
            return None
        tensors: dict[str, Tensor] = {}
        plain = as_plain(state.as_dict(), tensors, "state")
        files = {STATE: write_tensors(place / STATE, tensors)}
        for written, _ in parts:
            files |= written
        manifest = CheckpointManifest(
            step=step,
            written=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=versions(),
            parent=before,
            files=files,
            tables={name: facts for _, tables in parts for name, facts in tables.items()},
            routing=None if ranks.is_alone else ranks.routing,
            state=plain,
        )
        manifest = CHECKPOINT.write(place, manifest)
        unfinished.close()
        return manifest

    with tables_at_rest(ranks.tables.values()):
        with ExitStack() as unfinished:
            enter = unfinished.enter_context
            place = ranks.all_of(ranks.do(lambda: folder if ranks.rank else enter(atomic_folder(folder))))[0]
            parts = ranks.all_of(ranks.do(lambda: _written_tables(place, ranks, before)))
            manifest = ranks.all_of(ranks.do(finish))[0]
        assert manifest is not None
        for table in ranks.tables.values():
            table.track(manifest.id if track else None)
    return manifest


def _parent(folder: Path, ranks: CheckpointRanks, parent: str | Path | None) -> Parent | None:
    """The checkpoint whose rows a new one changes."""
    if folder.exists():
        raise CheckpointError(f"{folder}: exists already")
    if parent is None:
        return None
    before = Parent(CHECKPOINT.read(Path(parent)).id, f"../{Path(parent).name}")
    if not are_tracked(ranks, before.id):
        raise CheckpointError(f"{folder}: the tables have not been tracked since {parent}: write all of them")
    return before


def are_tracked(ranks: CheckpointRanks, since: str) -> bool:
    """Whether the tables have recorded all changes since the checkpoint of an id was written or loaded."""
    return all(table.changes is not None and table.changes.since == since for table in ranks.tables.values())


def _state(
    ranks: CheckpointRanks, model: nn.Module, optimizers: Sequence[Optimizer], scheduler: LRScheduler | None, extra: Any
) -> SavedState:
    with rows_left_out():
        return SavedState(
            model=model.state_dict(),
            optimizers=[_optimizer_state(one) for one in optimizers],
            scheduler=None if scheduler is None else scheduler.state_dict(),
            scheduler_kind=None if scheduler is None else type(scheduler).__name__,
            ranks=ranks.all_of(SavedRank(rng_state(), [_generator_state(one) for one in optimizers])),
            extra=extra,
        )


def _optimizer_state(optimizer: Optimizer) -> SavedOptimizer:
    content = optimizer.state_dict()
    state = {key: entry for key, entry in content["state"].items() if entry}  # empty if another holds the rows by now
    return SavedOptimizer(kind_of(optimizer), content["param_groups"], state)


def _generator_state(optimizer: Optimizer) -> Tensor | None:
    generator = getattr(optimizer, "generator", None)
    return None if generator is None else generator.get_state()


def _written_tables(
    place: Path, ranks: CheckpointRanks, before: Parent | None
) -> tuple[dict[str, FileFacts], dict[str, tuple[str, TableFacts]]]:
    """Write this rank's rows, and on the first rank also tables without ranks; gives the files' facts."""
    written: dict[str, FileFacts] = {}
    facts: dict[str, tuple[str, TableFacts]] = {}
    for where, table in ranks.tables.items():
        if table.ranks is None and ranks.rank:
            continue
        its = "" if table.ranks is None else f".rank-{ranks.rank}-of-{ranks.routing.ranks}"
        # A module's name may hold a slash.
        name = ("table-" + quote(where, safe="") if where else "table") + its + ".safetensors"
        assert before is None or table.changes is not None
        written[name], of_table = write_table(table, place / name, None if before is None else table.changes)
        facts[name] = where, of_table
    return written, facts
