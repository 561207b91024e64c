"""Loading a checkpoint: everything is read and checked before anything is changed.

A checkpoint of another training is a CheckpointError; content that nothing could have saved is reported as damage.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sparsegroup.artifact.manifest import chain_of, verified_chain
from sparsegroup.artifact.tensor_file import read_tensors
from sparsegroup.artifact.validation import validated
from sparsegroup.checkpoint.manifest import (
    CHECKPOINT,
    MANIFEST,
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
from sparsegroup.checkpoint.plain import check_rng_state, from_plain, set_rng_state
from sparsegroup.optim import GroupOptimizer
from sparsegroup.optim.state import LAST_STEP, TARGET
from sparsegroup.optim.step import GroupStep
from sparsegroup.optim.table_parameter import RowStore, StateOwner, rows_left_out, store_of
from sparsegroup.penalties import Norm, Penalty
from sparsegroup.signals import signals_deferred
from sparsegroup.table.files.read import ALL, read_table
from sparsegroup.table.table import Table
from sparsegroup.tensors import shape_of

Settings = Literal["saved", "own"]

_DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, SafetensorError, RuntimeError)
"""What reading a damaged file may raise."""

_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class LoadResult:
    """What a checkpoint contained.

    Attributes:
        step: The training step at which it was written.
        extra: As passed to `save_checkpoint`; arrays are tensors now.
        notes: What differs now: settings, versions, state that starts afresh.
    """

    step: int
    extra: Any
    notes: list[str] = field(default_factory=list)


def load_checkpoint(
    folder: str | Path,
    model: nn.Module,
    optimizer: Optimizers = None,
    scheduler: LRScheduler | None = None,
    *,
    settings: Settings = "saved",
    rng: bool = True,
    track: bool = False,
) -> LoadResult:
    """Bring a training to where `save_checkpoint` found it. All is read and checked before anything is changed.

    Args:
        folder: The checkpoint; one that holds only changes needs its predecessors in the same parent folder.
        model: Built as it was.
        optimizer: One or several, as they were. None loads the weights only: u and the moments are left out, and any
            optimizer starts afresh on them.
        scheduler: As it was.
        settings: "saved" (default, as torch): learning rate, λ and the optimizers' other settings become those of the
            checkpoint. "own": the optimizers keep theirs; u and the moments are loaded, so that training continues
            with another λ from where the first one has led.
        rng: Also set the random number generators.
        track: Let the tables record changes from now on, so that the next checkpoint can follow this one. One that
            other ranks have written cannot be followed: their parts hold other rows.

    Returns:
        The step, `extra`, and what differs now.

    Raises:
        CheckpointError: A file is missing, damaged or of another version, or the checkpoint is another model's or
            optimizer's; nothing is changed.
        MemoryError: The system has no more; nothing is changed.
    """
    folder, optimizers = Path(folder), listed(optimizer)
    ranks = CheckpointRanks(model, "reading a checkpoint")
    manifest, state, rows, notes = ranks.do(lambda: _read(folder, ranks, model, optimizers, scheduler, settings))
    is_continued = len(state.ranks) == ranks.routing.ranks
    own = state.ranks[ranks.rank if is_continued else 0]
    owners: dict[RowStore, StateOwner] = {}

    def load_dense() -> None:
        try:
            for one, saved in zip(optimizers, state.optimizers, strict=False):
                _load_optimizer(one, saved, owners, keeps_settings=settings == "own")
            if scheduler is not None:
                scheduler.load_state_dict(state.scheduler or {})
            for one, generator in zip(optimizers, own.generators, strict=False):
                if generator is not None and getattr(one, "generator", None) is not None:
                    one.generator.set_state(generator)  # type: ignore[attr-defined]
        except _DAMAGE as error:
            raise CheckpointError(f"{folder}: the optimizer's state does not fit ({error})") from error
        with rows_left_out():
            model.load_state_dict(state.model)

    def adopt_rows() -> None:
        for table, read in rows.items():
            table.adopt(read, owners.get(table))

    with signals_deferred(), _undone_if_it_fails(model, optimizers, scheduler):
        ranks.do(load_dense)
        ranks.do(adopt_rows)
    for table in rows:
        table.track(manifest.id if track and manifest.routing == (None if ranks.is_alone else ranks.routing) else None)
    if rng:
        _set_random_numbers(own, 0 if is_continued else ranks.rank)
    return LoadResult(manifest.step, state.extra, notes)


def saved_state(folder: str | Path) -> SavedState:
    """What a checkpoint holds except the rows, which are not read; CheckpointError if it is missing or damaged."""
    return _state(Path(folder), CHECKPOINT.read(Path(folder)))


def _read(
    folder: Path,
    ranks: CheckpointRanks,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    scheduler: LRScheduler | None,
    settings: Settings,
) -> tuple[CheckpointManifest, SavedState, dict[Table, Table], list[str]]:
    """The manifest, the state, the model's tables → their rows on this rank, and what differs now: all checked."""
    chain = verified_chain(folder, CHECKPOINT) if ranks.is_alone else chain_of(folder, CHECKPOINT)
    manifest = chain[-1][1]
    try:
        state = _state(folder, manifest)
        _check_tables(folder, manifest, ranks)
        _check_model(folder, state.model, model)
        if optimizers:
            _check_kinds(folder, state, optimizers)
        notes = _differences(manifest, state, optimizers, settings)
        if scheduler is not None:
            _check_scheduler(folder, state, scheduler)
        for rank in state.ranks:
            check_rng_state(rank.rng)
        rows = {table: _rows(chain, where, table, ranks) for where, table in ranks.tables.items()}
        for table, read in rows.items():
            _check_room(folder, read.num_rows, table)
            read.cut_to_limit()
        for place, (saved, optimizer) in enumerate(zip(state.optimizers, optimizers, strict=False)):
            _check_optimizer(f"state.optimizers.{place}", saved, optimizer, rows)
    except CheckpointError:
        raise
    except _DAMAGE as error:
        raise CheckpointError(f"{folder}: damaged ({error})") from error
    return manifest, state, rows, notes


def _state(folder: Path, manifest: CheckpointManifest) -> SavedState:
    if STATE not in manifest.files:
        raise CheckpointError(f"{folder}: damaged ({STATE} is not in {MANIFEST})")
    manifest.check_files(folder, CheckpointError, STATE)
    tensors = read_tensors(folder / STATE, CheckpointError)
    try:
        return validated(SavedState, from_plain(manifest.state, tensors))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{folder / MANIFEST}: damaged (state.{error})") from error


def _rows(chain: Sequence[tuple[Path, CheckpointManifest]], where: str, table: Table, ranks: CheckpointRanks) -> Table:
    """A table's rows, or this rank's; only files that may have some are read."""
    wanted = ALL if table.ranks is None else ranks.routing.range_of(ranks.rank)
    levels = [manifest.parts(folder, where) for folder, manifest in chain]
    for (folder, manifest), level in zip(chain, levels, strict=True):
        if needed := [part.path.name for part in level if part.share_in(wanted)]:
            manifest.check_files(folder, CheckpointError, *needed)
    return read_table(table.config, levels, wanted)


def _check_tables(folder: Path, manifest: CheckpointManifest, ranks: CheckpointRanks) -> None:
    """Raise unless the tables are the model's, and its ranks together have room for the rows."""
    saved, tables = dict(manifest.tables.values()), ranks.tables
    if saved.keys() != tables.keys():
        raise CheckpointError(
            f"{folder}: another model's: it has the tables {', '.join(map(repr, sorted(saved))) or 'none'}, "
            f"the model {', '.join(map(repr, sorted(tables))) or 'none'}"
        )
    for where, facts in manifest.tables.values():
        if mismatch := facts.mismatch(tables[where].config):
            raise CheckpointError(f"{folder}: another model's: the table {where!r} has {mismatch}")
    for where, table in tables.items():
        rows = sum(part.facts.rows for part in manifest.parts(folder, where))
        _check_room(folder, rows, table, 1 if table.ranks is None else ranks.routing.ranks)


def _check_room(folder: Path, rows: int, table: Table, ranks: int = 1) -> None:
    """Raise if rows are more than a table may have on its ranks."""
    if rows > ranks * table.config.max_rows:
        on = "" if ranks == 1 else f" on each of {ranks} ranks"
        raise CheckpointError(
            f"{folder}: {rows:,} rows are more than max_rows={table.config.max_rows:,} of the model{on}"
        )


def _check_model(folder: Path, saved: Mapping[str, Any], model: nn.Module) -> None:
    """Raise unless names, shapes and dtypes are the model's."""
    with rows_left_out():
        own = model.state_dict()
    for name in sorted(saved.keys() | own.keys()):
        ours, theirs = (shape_of(content[name]) if name in content else "nothing" for content in (own, saved))
        if ours != theirs:
            raise CheckpointError(f"{folder}: another model's: {name} is {theirs} there, {ours} in the model")


def _check_scheduler(folder: Path, state: SavedState, scheduler: LRScheduler) -> None:
    """Raise unless the state is of a scheduler of this class."""
    kind = type(scheduler).__name__
    if state.scheduler_kind != kind or state.scheduler is None:
        saved = state.scheduler_kind
        what = "no learning-rate scheduler" if saved is None else f"the state of a {saved}"
        raise CheckpointError(f"{folder}: holds {what}, and a {kind} is to be loaded")
    own = scheduler.state_dict()
    for name, value in state.scheduler.items():  # each becomes an attribute
        if name in own and not _is_like(value, own[name]):
            raise ValueError(f"state.scheduler.{name} is {value!r}, not like {own[name]!r}")
        if name not in own and (name == "optimizer" or hasattr(type(scheduler), name)):
            raise ValueError(f"state.scheduler.{name} is no state of a {kind}")


def _is_like(value: Any, own: Any) -> bool:
    """Whether a value can replace the scheduler's own."""
    if own is None or value is None:
        return True
    if isinstance(own, bool) or isinstance(value, bool):
        return type(value) is type(own)
    if isinstance(own, float | Tensor):
        return isinstance(value, int | float | Tensor)
    if isinstance(own, list | tuple):
        return isinstance(value, type(own)) and len(value) == len(own) and all(map(_is_like, value, own))
    return isinstance(value, Mapping if isinstance(own, Mapping) else type(own))


def _check_kinds(folder: Path, state: SavedState, optimizers: Sequence[Optimizer]) -> None:
    """Raise unless the optimizers are of the kinds that were saved."""
    theirs, ours = [one.kind for one in state.optimizers], [kind_of(one) for one in optimizers]
    if theirs != ours:
        raise CheckpointError(
            f"{folder}: was written with the optimizer {', '.join(theirs) or 'none'}, this one is {', '.join(ours)}: "
            "u and the moments of one mean nothing to the other. Load it without an optimizer: the weights are kept, "
            "and the new optimizer starts afresh"
        )


def _check_optimizer(where: str, saved: SavedOptimizer, optimizer: Optimizer, rows: Mapping[Table, Table]) -> None:
    """Raise unless steps and settings are in range, and the rows read for the tables have the parts of the rule."""
    parameters = [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
    for number, entry in saved.state.items():
        if "step" in entry and not 0 <= float(entry["step"]) <= LAST_STEP:
            raise ValueError(f"{where}.state.{number}.step: a count is expected, got {entry['step']}")
        if not isinstance(optimizer, GroupOptimizer) or type(number) is not int or number >= len(parameters):
            continue
        parameter, group = parameters[number]
        store = store_of(parameter)
        table = rows.get(store) if isinstance(store, Table) else None
        expected = set(optimizer.rule.initial_state(group))
        if table is not None and (found := set(table.rows.initial) - {"u"}) != expected:
            raise ValueError(f"{where}.state.{number}: its rows hold {sorted(found)}, the rule has {sorted(expected)}")
    if not isinstance(optimizer, GroupOptimizer):
        return
    for at, (settings, group) in enumerate(zip(saved.param_groups, optimizer.param_groups, strict=False)):
        for name, value in settings.items():  # in its own range, but beyond that of a step
            if isinstance(value, int | float) and abs(value) > _LARGEST:
                raise ValueError(f"{where}.param_groups.{at}.{name} is beyond float32")
        if settings.get("weight_decay") and any(store_of(parameter) is not None for parameter in group["params"]):
            raise ValueError(f"{where}.param_groups.{at}.weight_decay cannot be applied to rows of a HashEmbedding")


def _differences(
    manifest: CheckpointManifest, state: SavedState, optimizers: Sequence[Optimizer], settings: Settings
) -> list[str]:
    """The versions and the optimizers' settings that differ, in words."""
    now, notes = versions(), []
    for name, was in manifest.versions.items():
        if now.get(name, was) != was:
            notes.append(f"it was written with {name} {was}, this is {now[name]}: the same bits are not promised")
    taken = "the checkpoint's is taken" if settings == "saved" else "that is taken; u and the moments are kept"
    scheduled = ("lr", "momentum", "betas") if state.scheduler is not None else ()
    for saved, optimizer in zip(state.optimizers, optimizers, strict=False):
        for before, group in zip(saved.param_groups, optimizer.param_groups, strict=False):
            for name, value in before.items():
                if name in ("params", TARGET, *scheduled) or name not in group or isinstance(value, Tensor):
                    continue
                here = group[name].plain if isinstance(group[name], Norm | Penalty) else group[name]
                if here != value:
                    notes.append(f"{name} is {value!r} in the checkpoint and {here!r} here: {taken}")
    return list(dict.fromkeys(notes))


def _load_optimizer(
    optimizer: Optimizer, saved: SavedOptimizer, owners: dict[RowStore, StateOwner], *, keeps_settings: bool
) -> None:
    """Load a state without rows; `owners` gets the owner by which the optimizer will hold the state in each table."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if strange := [key for key in saved.state if type(key) is not int or not 0 <= key < len(parameters)]:
        raise ValueError(f"there is state of parameter {strange[0]!r}; the optimizer has {len(parameters)}")
    stores = {number: store for number in saved.state if (store := store_of(parameters[number])) is not None}
    dense = {number: entry for number, entry in saved.state.items() if number not in stores}
    groups = Optimizer.state_dict(optimizer)["param_groups"] if keeps_settings else saved.param_groups
    by_place = [{name: value for name, value in group.items() if name != "param_names"} for group in groups]
    optimizer.load_state_dict({"param_groups": by_place, "state": dense})
    group_of = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    loaded = dict(optimizer.state)
    optimizer.state.clear()
    for number, entry in saved.state.items():  # in this order, so that a resumed run writes the same files
        parameter = parameters[number]
        if number in stores:
            optimizer.state[parameter] = {"step": entry["step"].clone()}
            step = GroupStep(optimizer.rule, group_of[parameter])  # type: ignore[attr-defined]
            owner = owners.setdefault(stores[number], StateOwner())
            step.prepare_in_rows(parameter, optimizer.state[parameter], owner)
        elif parameter in loaded:
            optimizer.state[parameter] = loaded[parameter]


@contextmanager
def _undone_if_it_fails(
    model: nn.Module, optimizers: Sequence[Optimizer], scheduler: LRScheduler | None
) -> Iterator[None]:
    """If the block raises, put the optimizers, the scheduler and the weights outside of tables back."""
    changed = [*optimizers, *_with_inner(scheduler)]
    attributes = [dict(vars(one)) for one in changed]
    generators = [one.generator for one in optimizers if getattr(one, "generator", None) is not None]  # type: ignore[attr-defined]
    positions = [generator.get_state() for generator in generators]
    with rows_left_out():
        weights = [tensor for tensor in model.state_dict().values() if isinstance(tensor, Tensor)]
    values = [weight.to("cpu", copy=True) for weight in weights]
    try:
        yield
    except BaseException:
        for one, before in zip(changed, attributes, strict=True):
            vars(one).clear()
            vars(one).update(before)
        for generator, position in zip(generators, positions, strict=True):
            generator.set_state(position)
        for weight, value in zip(weights, values, strict=True):
            weight.copy_(value)
        raise


def _with_inner(scheduler: LRScheduler | None) -> list[LRScheduler]:
    """A scheduler, and the schedulers inside it."""
    if scheduler is None:
        return []
    return [scheduler, *(one for inner in getattr(scheduler, "_schedulers", ()) for one in _with_inner(inner))]


def _set_random_numbers(saved: SavedRank, rank: int) -> None:
    """Set the global generators; a new rank continues from the first rank's, with another seed."""
    set_rng_state(saved.rng)
    if rank:
        seed = int(torch.randint(1 << 31, (), dtype=torch.int64, device="cpu")) + rank
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
