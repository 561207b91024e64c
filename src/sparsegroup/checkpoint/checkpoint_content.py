"""What a checkpoint holds, read and checked before anything is changed by it."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sparsegroup.artifact.chain import chain_of, verified_chain
from sparsegroup.artifact.tensor_file import read_tensors
from sparsegroup.artifact.validation import validated
from sparsegroup.checkpoint.checkpoint_error import CheckpointError
from sparsegroup.checkpoint.checkpoint_manifest import CHECKPOINT, MANIFEST, CheckpointManifest
from sparsegroup.checkpoint.checkpoint_ranks import CheckpointRanks
from sparsegroup.checkpoint.compatibility import (
    check_model,
    check_optimizers,
    check_room,
    check_scheduler,
    check_state,
    check_tables,
    version_notes,
)
from sparsegroup.checkpoint.plain import from_plain
from sparsegroup.checkpoint.rng import check_rng_state, set_rng_state
from sparsegroup.checkpoint.saved_state import SavedState
from sparsegroup.table.table import Table
from sparsegroup.table.table_reading import ALL, read_table

STATE = "state.safetensors"
DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, SafetensorError, RuntimeError)
"""What reading a damaged file may raise."""


@dataclass(frozen=True)
class CheckpointContent:
    """What a checkpoint holds.

    Attributes:
        manifest: Its manifest.
        state: All but the rows, see `SavedState`.
        rows: Name of each table → its rows, as far as they are this rank's.
        notes: What is not as it was.
        ranks: Who has read it.
    """

    manifest: CheckpointManifest
    state: Mapping[str, Any]
    rows: Mapping[str, Table]
    notes: list[str]
    ranks: CheckpointRanks

    @property
    def generators(self) -> list[Tensor | None]:
        """The states of the optimizers' generators."""
        own = self._own
        if own is not None:
            return list(own["generators"])
        return [one["generator"] for one in self.state["optimizers"]]

    def set_rng(self) -> None:
        """Bring the random number generators to where they were; ranks that there were not go on from the first's."""
        own, rank = self._own, self.ranks.rank
        set_rng_state(self.state["rng"] if own is None else own["rng"])
        if own is None and rank:
            seed = int(torch.randint(1 << 31, ())) + rank
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)

    @property
    def _own(self) -> Mapping[str, Any] | None:
        """What was kept of this rank alone; None where there were not as many."""
        kept: Sequence[Mapping[str, Any]] = self.state.get("ranks") or ()
        is_same = len(kept) == self.ranks.routing.ranks and not self.ranks.is_alone
        return kept[self.ranks.rank] if is_same else None


def read_content(
    folder: Path,
    ranks: CheckpointRanks,
    model: nn.Module,
    tables: Mapping[str, Table],
    optimizers: Sequence[Optimizer],
    scheduler: LRScheduler | None,
    settings: str,
) -> CheckpointContent:
    """Read and check a checkpoint; nothing is changed.

    Args:
        folder: The checkpoint.
        ranks: Who reads: each its own rows.
        model, tables: What they are to be loaded into, and its tables by name.
        optimizers, scheduler, settings: See `load_checkpoint`.

    Raises:
        CheckpointError: See `load_checkpoint`.
    """
    chain = verified_chain(folder, CHECKPOINT) if ranks.is_alone else chain_of(folder, CHECKPOINT)
    manifest = chain[-1][1]
    manifest.check_files(folder, CheckpointError, STATE)
    try:
        content = _state(folder, manifest)
        check_tables(folder, manifest, tables, ranks)
        check_model(folder, content["model"], model)
        notes = version_notes(manifest)
        if optimizers:
            notes += check_optimizers(folder, content, optimizers, settings)
        if scheduler is not None:
            check_scheduler(folder, content, scheduler)
        for one in (content, *(content.get("ranks") or ())):
            check_rng_state(one["rng"])
        read = {where: _read(chain, where, table, ranks) for where, table in tables.items()}
        for where, table in tables.items():
            check_room(folder, read[where].num_rows, table)
            read[where].cut_to_limit()
        check_state(folder, content, optimizers, {table: read[where] for where, table in tables.items()})
    except CheckpointError:
        raise
    except DAMAGE as error:
        raise CheckpointError(f"{folder}: damaged ({error})") from error
    return CheckpointContent(manifest, content, read, notes, ranks)


def kept_state(folder: str | Path) -> dict[str, Any]:
    """What a checkpoint keeps beside its rows, which are not looked at: `model`, `extra` and the others.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    folder = Path(folder)
    manifest = CHECKPOINT.read(folder)
    manifest.check_files(folder, CheckpointError, STATE)
    return _state(folder, manifest)


def _state(folder: Path, manifest: CheckpointManifest) -> dict[str, Any]:
    if STATE not in manifest.files:
        raise CheckpointError(f"{folder}: damaged ({STATE} is not in {MANIFEST})")
    tensors = read_tensors(folder / STATE, CheckpointError)
    try:
        content: dict[str, Any] = from_plain(manifest.state, tensors)
        validated(SavedState, content)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{folder / MANIFEST}: damaged (state.{error})") from error
    return content


def _read(chain: Sequence[tuple[Path, CheckpointManifest]], where: str, table: Table, ranks: CheckpointRanks) -> Table:
    """A table's rows, or those of this rank; no other files are looked at."""
    wanted = ALL if table.ranks is None else ranks.buckets
    levels = [manifest.parts(folder, where) for folder, manifest in chain]
    if not all(levels):
        raise CheckpointError(f"{chain[-1][0]}: builds on one without the table {where!r}")
    for (folder, manifest), level in zip(chain, levels, strict=True):
        if [part.buckets for part in level] != [part.buckets for part in levels[0]]:
            raise CheckpointError(f"{folder}: builds on one whose table {where!r} lies on other ranks")
        if needed := [part.path.name for part in level if part.meets(wanted)]:
            manifest.check_files(folder, CheckpointError, *needed)
    return read_table(table.config, levels, wanted)
