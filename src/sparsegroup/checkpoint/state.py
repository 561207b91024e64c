"""The whole state of a training, as files of one folder."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sparsegroup import files
from sparsegroup.checkpoint.errors import CheckpointError
from sparsegroup.checkpoint.manifest import MANIFEST, Manifest, check_files, read_manifest, versions, write_manifest
from sparsegroup.checkpoint.plain import as_plain, from_plain
from sparsegroup.checkpoint.rng import check_rng_state, rng_state, set_rng_state
from sparsegroup.optim import GroupOptimizer
from sparsegroup.optim.state import load_state_without_rows, parameters_of, state_without_rows
from sparsegroup.optim.stored import Claim, RowStore, StoredParameter
from sparsegroup.table import HashEmbedding
from sparsegroup.table.changes import Changes
from sparsegroup.table.module import rows_left_out
from sparsegroup.table.storage import TableFacts, read_table, write_changes, write_table
from sparsegroup.table.table import Table
from sparsegroup.tensor_file import FileFacts, write_tensors

STATE = "state.safetensors"

Optimizers = Optimizer | Sequence[Optimizer] | None


@dataclass(frozen=True)
class Loaded:
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
    parent: Manifest | None = None,
    track: bool = False,
) -> Manifest:
    """Write the state of a training into `folder`, which appears when all of it is on disk.

    It holds the model with the rows of its tables (vectors, u and moments), the optimizers' state and settings, the
    scheduler's, the random number generators' (torch's, NumPy's, Python's), the versions, and `extra`. The rows are
    written from where they are, in pieces: beside the table it takes 5 % of its memory, at least 16 MiB.

    Args:
        folder: New.
        model: Its `HashEmbedding`s may be anywhere in it.
        optimizer: One, several, or none.
        scheduler: Of the learning rate.
        step: Of the training.
        extra: What else is to be kept: numbers, texts, tensors, lists and mappings of them.
        parent: Write only what has changed in the tables since this checkpoint, a neighbour of the new one; it must be
            the last one of the model that was written with `track`.
        track: Let the tables note from now on what changes.

    Raises:
        CheckpointError: The folder exists, something can only be pickled, or the tables have not been tracked since
            `parent`.
        OSError: The disk is full, say. No folder is left behind.
    """
    folder = Path(folder)
    if folder.exists():
        raise CheckpointError(f"{folder}: exists already")
    if parent is not None and not is_tracked(model, parent):
        raise CheckpointError(f"{folder}: the tables have not been tracked since {parent.name}: write all of them")
    tensors: dict[str, Tensor] = {}
    content: dict[str, Any] = {"optimizers": [_optimizer_state(one) for one in _listed(optimizer)], "extra": extra}
    with rows_left_out():
        content["model"] = model.state_dict()
    content["scheduler"] = None if scheduler is None else scheduler.state_dict()
    content["scheduler_kind"] = None if scheduler is None else type(scheduler).__name__
    content["rng"] = rng_state()
    state = as_plain(content, tensors, "state")
    with _at_rest(model) as tables:
        with files.made_whole(folder) as place:
            written: dict[str, FileFacts] = {STATE: write_tensors(place / STATE, tensors)}
            facts: dict[str, tuple[str, TableFacts]] = {}
            for where, table in tables.items():
                name = f"{f'table-{_quoted(where)}' if where else 'table'}.safetensors"
                if parent is None:
                    written[name], of_table = write_table(table, place / name)
                else:
                    assert table.changes is not None
                    written[name], of_table = write_changes(table, table.changes, place / name)
                facts[name] = where, of_table
            manifest = Manifest(
                name=folder.name,
                step=step,
                written=datetime.now(UTC).isoformat(timespec="seconds"),
                versions=versions(),
                parent=None if parent is None else (parent.name, parent.id),
                files=written,
                tables=facts,
                state=state,
            )
            manifest = write_manifest(place, manifest)
        for table in tables.values():
            table.changes = Changes(table.num_rows, manifest.id) if track else None
    return manifest


def load_checkpoint(
    folder: str | Path,
    model: nn.Module,
    optimizer: Optimizers = None,
    scheduler: LRScheduler | None = None,
    *,
    settings: Literal["saved", "own"] = "saved",
    rng: bool = True,
    track: bool = False,
) -> Loaded:
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
        track: Let the tables note from now on what changes, so that the next checkpoint can follow this one.

    Returns:
        What was kept with it, and what is not as it was.

    Raises:
        CheckpointError: A file is missing, damaged or of another version, or the checkpoint is another model's or
            optimizer's; nothing is changed.
        MemoryError: The system has no more; nothing is changed.
    """
    folder = Path(folder)
    chain = verified(folder)
    manifest = chain[-1][1]
    optimizers = _listed(optimizer)
    tables = _tables(model)
    try:
        if STATE not in manifest.files:
            raise CheckpointError(f"{folder}: damaged ({STATE} is not in {MANIFEST})")
        content = from_plain(manifest.state, load_file(folder / STATE))
        _check_tables(folder, manifest, tables)
        _check_model(folder, content["model"], model)
        notes = _version_notes(manifest)
        if optimizers:
            notes += _check_optimizers(folder, content, optimizers, settings)
        if scheduler is not None:
            _check_scheduler(folder, content, scheduler)
        check_rng_state(content["rng"])
        read = {where: _read(chain, where, table) for where, table in tables.items()}
    except CheckpointError:
        raise
    except _DAMAGE as error:
        raise CheckpointError(f"{folder}: damaged ({error})") from error
    claims: dict[RowStore, Claim] = {table: Claim() for table in tables.values()}
    claimed: set[RowStore] = set()
    with _all_or_nothing(folder, optimizers, scheduler):
        for own, saved in zip(optimizers, content["optimizers"], strict=False):
            if settings == "own":
                saved = {**saved, "param_groups": Optimizer.state_dict(own)["param_groups"]}
            stored = {p: claims[p.store] for p in parameters_of(own) if isinstance(p, StoredParameter)}
            load_state_without_rows(own, saved, stored)
            claimed |= {p.store for p in stored if p in own.state}
        if scheduler is not None:
            scheduler.load_state_dict(content["scheduler"])
        for own, saved in zip(optimizers, content["optimizers"], strict=False):
            generator = getattr(own, "generator", None)
            if generator is not None and saved["generator"] is not None:
                generator.set_state(saved["generator"])
    for where, table in tables.items():
        table.become(read[where], claims[table] if table in claimed else None)
        table.changes = Changes(table.num_rows, manifest.id) if track else None
    with rows_left_out():
        model.load_state_dict(content["model"])
    if rng:
        set_rng_state(content["rng"])
    return Loaded(manifest.step, content["extra"], notes)


_DAMAGE = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, SafetensorError, RuntimeError)


@contextmanager
def _all_or_nothing(folder: Path, optimizers: Sequence[Optimizer], scheduler: LRScheduler | None) -> Iterator[None]:
    """Put optimizers and scheduler back to where they were if they cannot take what is loaded into them."""
    changed = [*optimizers, *_with_parts(scheduler)]
    before = [dict(one.__dict__) for one in changed]
    generators = [found for one in optimizers if (found := getattr(one, "generator", None)) is not None]
    states = [one.get_state() for one in generators]
    try:
        yield
    except _DAMAGE as error:
        for one, content in zip(changed, before, strict=True):
            one.__dict__.clear()
            one.__dict__.update(content)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        raise CheckpointError(f"{folder}: the optimizer's state does not fit ({error})") from error


def _with_parts(scheduler: LRScheduler | None) -> list[LRScheduler]:
    if scheduler is None:
        return []
    parts: Sequence[LRScheduler] = getattr(scheduler, "_schedulers", ())
    return [scheduler, *(one for part in parts for one in _with_parts(part))]


def chain_of(folder: Path) -> list[tuple[Path, Manifest]]:
    """A checkpoint behind those that it changes, from the one with all rows on.

    Raises:
        CheckpointError: One is missing, or its manifest is damaged.
    """
    chain = [(folder, read_manifest(folder))]
    while (parent := chain[0][1].parent) is not None:
        name, id = parent
        before = folder.parent / name
        try:
            manifest = read_manifest(before)
        except CheckpointError as error:
            raise CheckpointError(f"{folder}: holds changes to {name}, which cannot be read: {error}") from error
        if manifest.id != id:
            raise CheckpointError(f"{folder}: holds changes to another {name} than the one beside it")
        if before in [path for path, _ in chain]:
            raise CheckpointError(f"{folder}: holds changes to {name}, which holds changes to it")
        chain.insert(0, (before, manifest))
    return chain


def verified(folder: Path) -> list[tuple[Path, Manifest]]:
    """`chain_of` a checkpoint, all of whose files are as they were written.

    Raises:
        CheckpointError: A file is missing or damaged.
    """
    chain = chain_of(folder)
    for path, manifest in chain:
        check_files(path, manifest)
    return chain


def contents(folder: str | Path) -> tuple[Manifest, Any]:
    """The manifest of a checkpoint and what was kept as `extra`; its rows are not looked at.

    Raises:
        CheckpointError: As `load_checkpoint`.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    try:
        return manifest, from_plain(manifest.state["extra"], load_file(folder / STATE))
    except _DAMAGE as error:
        raise CheckpointError(f"{folder}: damaged ({error})") from error


def _quoted(where: str) -> str:
    return quote(where, safe="")  # a module's name may hold a slash


def _listed(optimizer: Optimizers) -> list[Optimizer]:
    return [] if optimizer is None else [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)


def _tables(model: nn.Module) -> dict[str, Table]:
    return {name: module.table for name, module in model.named_modules() if isinstance(module, HashEmbedding)}


@contextmanager
def _at_rest(model: nn.Module) -> Iterator[dict[str, Table]]:
    """The model's tables, which no other thread comes to meanwhile."""
    tables = _tables(model)
    with ExitStack() as stack:
        for table in tables.values():
            stack.enter_context(table.lock)
            stack.enter_context(table.pending)
        yield tables


def is_tracked(model: nn.Module, since: Manifest) -> bool:
    """Whether all tables of the model have noted their changes since a checkpoint was written or loaded."""
    return all(table.changes is not None and table.changes.since == since.id for table in _tables(model).values())


def _optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    generator = getattr(optimizer, "generator", None)
    return {
        **state_without_rows(optimizer),
        "kind": _kind(optimizer),
        "generator": None if generator is None else generator.get_state(),
    }


def _kind(optimizer: Optimizer) -> str:
    return optimizer.rule.name if isinstance(optimizer, GroupOptimizer) else type(optimizer).__name__


def _read(chain: Sequence[tuple[Path, Manifest]], where: str, table: Table) -> Table:
    parts = [
        (folder / name, facts)
        for folder, manifest in chain
        for name, (place, facts) in manifest.tables.items()
        if place == where
    ]
    return read_table(table.config, parts)


def _check_tables(folder: Path, manifest: Manifest, tables: Mapping[str, Table]) -> None:
    saved = dict(manifest.tables.values())
    if saved.keys() != tables.keys():
        raise CheckpointError(
            f"{folder}: another model's: it has the tables {', '.join(map(repr, sorted(saved))) or 'none'}, "
            f"the model {', '.join(map(repr, sorted(tables))) or 'none'}"
        )
    for where, facts in saved.items():
        if mismatch := facts.mismatch(tables[where].config):
            raise CheckpointError(f"{folder}: another model's: the table {where!r} has {mismatch}")
        if facts.rows > tables[where].config.max_rows:
            raise CheckpointError(
                f"{folder}: {facts.rows:,} rows are more than max_rows={tables[where].config.max_rows:,} of the model"
            )


def _check_scheduler(folder: Path, content: Any, own: LRScheduler) -> None:
    saved, ours = content["scheduler_kind"], type(own).__name__
    if saved != ours:
        what = "no learning-rate scheduler" if saved is None else f"the state of a {saved}"
        raise CheckpointError(f"{folder}: holds {what}, and a {ours} is to be loaded")


def _check_model(folder: Path, saved: Mapping[str, Any], model: nn.Module) -> None:
    with rows_left_out():
        own = model.state_dict()
    for name in sorted(saved.keys() | own.keys()):
        ours, theirs = (_shape(content[name]) if name in content else "nothing" for content in (own, saved))
        if ours != theirs:
            raise CheckpointError(f"{folder}: another model's: {name} is {theirs} there, {ours} in the model")


def _shape(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _check_optimizers(folder: Path, content: Any, own: Sequence[Optimizer], settings: str) -> list[str]:
    saved = content["optimizers"]
    theirs, ours = [state["kind"] for state in saved], [_kind(one) for one in own]
    if theirs != ours:
        raise CheckpointError(
            f"{folder}: was written with the optimizer {', '.join(theirs) or 'none'}, this one is {', '.join(ours)}: "
            "u and the moments of one mean nothing to the other. Load it without an optimizer: the weights are kept, "
            "and the new optimizer starts afresh"
        )
    by_scheduler = ("lr", "momentum", "betas") if content["scheduler"] is not None else ()
    passed_over = {"params", *by_scheduler}
    notes = [
        f"{name} is {value!r} in the checkpoint and {group.get(name)!r} here: {_taken(settings)}"
        for state, one in zip(saved, own, strict=True)
        for before, group in zip(state["param_groups"], one.param_groups, strict=False)
        for name, value in before.items()
        if name not in passed_over and not isinstance(value, Tensor) and name in group and group[name] != value
    ]
    return list(dict.fromkeys(notes))


def _taken(settings: str) -> str:
    return "the checkpoint's is taken" if settings == "saved" else "that is taken; u and the moments are kept"


def _version_notes(manifest: Manifest) -> list[str]:
    now = versions()
    return [
        f"it was written with {name} {was}, this is {now[name]}: the same bits are not promised"
        for name, was in manifest.versions.items()
        if name in now and now[name] != was
    ]
