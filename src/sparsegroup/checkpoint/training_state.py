"""The whole state of a training, as files of one folder."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sparsegroup.artifact.file_facts import FileFacts
from sparsegroup.artifact.manifest import Parent
from sparsegroup.artifact.tensor_file import write_tensors
from sparsegroup.artifact.whole_folder import unfinished_place, whole_folder
from sparsegroup.checkpoint.checkpoint_content import DAMAGE, STATE, read_content
from sparsegroup.checkpoint.checkpoint_error import CheckpointError
from sparsegroup.checkpoint.checkpoint_manifest import CHECKPOINT, CheckpointManifest, versions
from sparsegroup.checkpoint.checkpoint_ranks import CheckpointRanks
from sparsegroup.checkpoint.compatibility import (
    kind_of,
)
from sparsegroup.checkpoint.plain import as_plain
from sparsegroup.checkpoint.rng import rng_state
from sparsegroup.optim import GroupOptimizer
from sparsegroup.optim.group_step import GroupStep
from sparsegroup.optim.stored import RowStore, StateOwner, rows_left_out, store_of
from sparsegroup.table.field_tables import tables_in
from sparsegroup.table.table import Table
from sparsegroup.table.table_file import TableFacts, write_changes, write_table

Optimizers = Optimizer | Sequence[Optimizer] | None


@dataclass(frozen=True)
class LoadResult:
    """What a checkpoint brought.

    Attributes:
        step: That it was written at.
        extra: What was given to be kept with it; arrays are tensors now.
        notes: What is not as it was: settings that differ, state that starts afresh, other versions.
    """

    step: int
    extra: Any
    notes: list[str] = field(default_factory=list)


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
    written from where they are, in pieces: beside the table it takes 5 % of its memory, at least 8 MiB.

    Args:
        folder: New.
        model: Its `HashEmbedding`s may be anywhere in it.
        optimizer: One, several, or none.
        scheduler: The scheduler of the learning rate.
        step: The training step.
        extra: What else is to be kept: numbers, texts, tensors, lists and mappings of them.
        parent: The last checkpoint of the model, written with `track`, a neighbour of the new one. Only what has
            changed in the tables since is written.
        track: Let the tables note from now on what changes.
        sweep: Apply the closed form to all rows first, see `GroupOptimizer.sweep`; what is trained afterwards differs
            by it.

    Raises:
        CheckpointError: The folder exists, something can only be pickled, or the tables have not been tracked since
            `parent`.
        OSError: The disk is full, say. No folder is left behind.
    """
    folder = Path(folder)
    ranks = CheckpointRanks.of(model, "writing a checkpoint")
    before = ranks.do(lambda: _predecessor(folder, model, parent))
    if not ranks.agree_on(before):
        raise CheckpointError(f"{folder}: follows another checkpoint on each rank, or none on some: give all the same")
    for one in _listed(optimizer) if sweep else ():
        if isinstance(one, GroupOptimizer):
            one.sweep()
    content: dict[str, Any] = {"extra": extra}
    with rows_left_out():
        content["optimizers"] = [_optimizer_state(one) for one in _listed(optimizer)]
        content["model"] = model.state_dict()
    content["scheduler"] = None if scheduler is None else scheduler.state_dict()
    content["scheduler_kind"] = None if scheduler is None else type(scheduler).__name__
    content["rng"] = rng_state()
    if not ranks.is_alone:
        content["ranks"] = ranks.all_of({"rng": rng_state(), "generators": _generators(optimizer)})

    def finish() -> CheckpointManifest | None:
        if ranks.rank:
            return None
        tensors: dict[str, Tensor] = {}
        state = as_plain(content, tensors, "state")
        written: dict[str, FileFacts] = {STATE: write_tensors(place / STATE, tensors)}
        for files, _ in parts:
            written |= files
        manifest = CheckpointManifest(
            step=step,
            written=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=versions(),
            parent=before,
            files=written,
            tables={name: of_table for _, tables in parts for name, of_table in tables.items()},
            routing=ranks.plain_routing,
            state=state,
        )
        manifest = CHECKPOINT.write(place, manifest)
        unfinished.close()
        return manifest

    with _at_rest(model) as tables:
        with ExitStack() as unfinished:
            if not ranks.rank:
                place = ranks.do(lambda: unfinished.enter_context(whole_folder(folder)))
            else:
                place = ranks.do(lambda: unfinished_place(folder))
            parts = ranks.all_of(ranks.do(lambda: _written_tables(place, tables, ranks, before)))
            manifest = ranks.all_of(ranks.do(finish))[0]
        assert manifest is not None
        for table in tables.values():
            table.track(manifest.id if track else None)
    return manifest


def _predecessor(folder: Path, model: nn.Module, parent: str | Path | None) -> Parent | None:
    """The checkpoint whose rows a new one changes."""
    if folder.exists():
        raise CheckpointError(f"{folder}: exists already")
    before = None if parent is None else Parent(CHECKPOINT.read(Path(parent)).id, f"../{Path(parent).name}")
    if before is not None and not is_tracked(model, before.id):
        raise CheckpointError(f"{folder}: the tables have not been tracked since {parent}: write all of them")
    return before


def _written_tables(
    place: Path, tables: Mapping[str, Table], ranks: CheckpointRanks, before: Parent | None
) -> tuple[dict[str, FileFacts], dict[str, tuple[str, TableFacts]]]:
    """Write this rank's rows, and those that are on one rank alone if it is the first; gives the files' facts."""
    written: dict[str, FileFacts] = {}
    facts: dict[str, tuple[str, TableFacts]] = {}
    for where, table in tables.items():
        if table.ranks is None and ranks.rank:
            continue
        its = "" if table.ranks is None else f".rank-{ranks.rank}-of-{ranks.routing.ranks}"
        name = f"{f'table-{_quoted(where)}' if where else 'table'}{its}.safetensors"
        if before is None:
            written[name], of_table = write_table(table, place / name)
        else:
            assert table.changes is not None
            written[name], of_table = write_changes(table, table.changes, place / name)
        facts[name] = where, of_table
    return written, facts


def load_checkpoint(
    folder: str | Path,
    model: nn.Module,
    optimizer: Optimizers = None,
    scheduler: LRScheduler | None = None,
    *,
    settings: Literal["saved", "own"] = "saved",
    rng: bool = True,
    track: bool = False,
) -> LoadResult:
    """Bring a training to where `save_checkpoint` found it. All is read and checked before anything is changed.

    Args:
        folder: The checkpoint; one that holds only changes needs its predecessors beside it.
        model: Built as it was.
        optimizer: One or several, as they were. None loads the weights alone: u and the moments are left out, and an
            optimizer, of whatever kind, starts afresh on them.
        scheduler: As it was.
        settings: "saved" (default, as torch): learning rate, λ and the optimizers' other settings become those of the
            checkpoint. "own": they stay; u and the moments are kept, so that another λ goes on from where the first
            one has led.
        rng: Set the random number generators, too.
        track: Let the tables note from now on what changes, so that the next checkpoint can follow this one. One that
            other ranks have written cannot be followed: their parts hold other rows.

    Returns:
        What was kept with it, and what is not as it was.

    Raises:
        CheckpointError: A file is missing, damaged or of another version, or the checkpoint is another model's or
            optimizer's; nothing is changed.
        MemoryError: The system has no more; nothing is changed.
    """
    folder = Path(folder)
    ranks, optimizers, tables = CheckpointRanks.of(model, "reading a checkpoint"), _listed(optimizer), _tables(model)
    found = ranks.do(lambda: read_content(folder, ranks, model, tables, optimizers, scheduler, settings))
    manifest, content = found.manifest, found.state

    claims: dict[RowStore, StateOwner] = {table: StateOwner() for table in tables.values()}
    claimed: set[RowStore] = set()

    def load_optimizers() -> None:
        try:
            for own, saved in zip(optimizers, content["optimizers"], strict=False):
                if settings == "own":
                    saved = {**saved, "param_groups": Optimizer.state_dict(own)["param_groups"]}
                claimed.update(_load_optimizer(own, saved, claims))
            if scheduler is not None:
                scheduler.load_state_dict(content["scheduler"])
            for own, saved in zip(optimizers, found.generators, strict=False):
                generator = getattr(own, "generator", None)
                if generator is not None and saved is not None:
                    generator.set_state(saved)
        except DAMAGE as error:
            raise CheckpointError(f"{folder}: the optimizer's state does not fit ({error})") from error

    def adopt_rows() -> None:
        for where, table in tables.items():
            table.adopt(found.rows[where], claims[table] if table in claimed else None)

    with _all_or_nothing(optimizers, scheduler):
        ranks.do(load_optimizers)
        ranks.do(adopt_rows)
    for table in tables.values():
        table.track(manifest.id if track and manifest.routing == ranks.plain_routing else None)
    with rows_left_out():
        model.load_state_dict(content["model"])
    if rng:
        found.set_rng()
    return LoadResult(manifest.step, content["extra"], found.notes)


def _load_optimizer(
    optimizer: Optimizer, content: Mapping[str, Any], claims: Mapping[RowStore, StateOwner]
) -> set[RowStore]:
    """Load a state without rows; gives the stores whose state is this optimizer's, by their `claims`.

    Raises:
        ValueError: State of another optimizer or shape; nothing is changed.
    """
    state = content["state"]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if strange := [key for key in state if type(key) is not int or not 0 <= key < len(parameters)]:
        raise ValueError(f"there is state of parameter {strange[0]!r}; the optimizer has {len(parameters)}")
    stores = {number: store for number in state if (store := store_of(parameters[number])) is not None}
    dense = {number: entry for number, entry in state.items() if number not in stores}
    optimizer.load_state_dict({"param_groups": content["param_groups"], "state": dense})
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    loaded = dict(optimizer.state)
    optimizer.state.clear()
    for number in state:  # in this order, so that a resumed run writes what one writes that was not cut off
        parameter = parameters[number]
        if number in stores:
            entry = optimizer.state[parameter] = {"step": state[number]["step"].clone()}
            step = GroupStep(optimizer.rule, groups[parameter])  # type: ignore[attr-defined]
            step.prepare_in_rows(parameter, entry, claims[stores[number]])
        elif parameter in loaded:
            optimizer.state[parameter] = loaded[parameter]
    return set(stores.values())


@contextmanager
def _all_or_nothing(optimizers: Sequence[Optimizer], scheduler: LRScheduler | None) -> Iterator[None]:
    """Put optimizers and scheduler back to where they were if anything fails."""
    changed = [*optimizers, *_with_parts(scheduler)]
    before = [dict(one.__dict__) for one in changed]
    generators = [found for one in optimizers if (found := getattr(one, "generator", None)) is not None]
    states = [one.get_state() for one in generators]
    try:
        yield
    except BaseException:
        for one, content in zip(changed, before, strict=True):
            one.__dict__.clear()
            one.__dict__.update(content)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        raise


def _with_parts(scheduler: LRScheduler | None) -> list[LRScheduler]:
    if scheduler is None:
        return []
    parts: Sequence[LRScheduler] = getattr(scheduler, "_schedulers", ())
    return [scheduler, *(one for part in parts for one in _with_parts(part))]


def _quoted(where: str) -> str:
    return quote(where, safe="")  # a module's name may hold a slash


def _listed(optimizer: Optimizers) -> list[Optimizer]:
    return [] if optimizer is None else [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)


def _tables(model: nn.Module) -> dict[str, Table]:
    return {name: table.table for name, table in tables_in(model).items()}


@contextmanager
def _at_rest(model: nn.Module) -> Iterator[dict[str, Table]]:
    """The model's tables, which no other thread comes to meanwhile."""
    tables = _tables(model)
    with ExitStack() as stack:
        for table in tables.values():
            stack.enter_context(table.at_rest())
        yield tables


def is_tracked(model: nn.Module, since: str) -> bool:
    """Whether all tables of the model have noted their changes since the checkpoint of an id was written or loaded."""
    return all(table.changes is not None and table.changes.since == since for table in _tables(model).values())


def _optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    generator = getattr(optimizer, "generator", None)
    content = optimizer.state_dict()
    return {
        "param_groups": content["param_groups"],
        # An entry is empty where another optimizer holds a table's rows by now.
        "state": {key: entry for key, entry in content["state"].items() if entry},
        "kind": kind_of(optimizer),
        "generator": None if generator is None else generator.get_state(),
    }


def _generators(optimizer: Optimizers) -> list[Tensor | None]:
    found = [getattr(one, "generator", None) for one in _listed(optimizer)]
    return [None if generator is None else generator.get_state() for generator in found]
