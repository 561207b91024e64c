"""An export of a limited size: which format, and how many rows, lose least on held-out rows."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from sparsegroup.artifact.tensor_file import facts_of_tensors
from sparsegroup.data.batches import Batch
from sparsegroup.reporting.formatting import size as shown
from sparsegroup.serving.evaluation import TestRows
from sparsegroup.serving.exporting import check_target, draft_of, snapshot_of, write_draft
from sparsegroup.serving.frozen import live_rows, sorted_rows
from sparsegroup.serving.frozen_model import frozen_copy, other_weights, tables_of
from sparsegroup.serving.manifest import Candidate, ExportManifest
from sparsegroup.serving.opening import TrainedModel
from sparsegroup.serving.rows import Embeddings, ExportError
from sparsegroup.settings.names import Dtype, KeyFormat, ProgramName
from sparsegroup.training.predictions import EVALUATED, numbers_named, predict

FORMATS: tuple[Dtype, ...] = ("float32", "float16", "int8", "int4")
"""The formats that are compared."""


def export_within(
    trained: TrainedModel,
    out: str | Path,
    most_bytes: int,
    test: TestRows,
    formats: Collection[ProgramName] = (),
    *,
    keys: KeyFormat = "fingerprints",
    threads: int = 1,
    overwrite: bool = False,
) -> ExportManifest:
    """Write the export of a trained model that loses least on test rows and takes at most `most_bytes`.

    The candidates are float32, float16, int8 and int4, each with as many rows as fit: the rows of the largest norm; the
    others become absent. Their losses on the first half of the test rows decide; the second half measures the result.

    Args:
        trained: The model, of `open_trained`.
        out: The folder; it appears when it is complete.
        most_bytes: Limit of the files of embeddings and of the network together, without programs and names.
        test: The rows, two at least.
        formats, threads, overwrite: See `export_trained`.
        keys: Format of the keys.

    Raises:
        ExportError: As `export_trained`; not even the network fits, or there are fewer than two rows.
    """
    check_target(trained, out, formats, test, overwrite=overwrite)
    middle = test.start + len(test) // 2
    if middle == test.start:
        raise ExportError(f"{test.log.name}: has {len(test)} test rows; a choice by `bytes` needs two or more")
    choice = _Choice.of(trained, keys)
    found: list[tuple[Candidate, Mapping[str, Tensor]]] = []
    for dtype in FORMATS:
        try:
            fitting = choice.fitting(dtype, most_bytes)
        except ExportError:  # numbers that the format does not have
            if dtype == FORMATS[0]:
                raise
            continue
        if fitting is None:
            continue
        kept, rows, size = fitting
        with numbers_named(test.log, test.start):
            window = predict(frozen_copy(trained.model, rows), _batches(test, middle))
        candidate = Candidate(dtype, sum(map(len, rows.values())), size, float(window.metrics().loss))
        found.append((candidate, kept))
    if not found:
        least = choice.network + choice.bytes_of(FORMATS[-1], choice.largest(0))[1]
        raise ExportError(
            f"`bytes`: {shown(most_bytes)} are too few: the network and the files without a row take {shown(least)}; "
            "give more, or train a smaller network",
            "bytes",
        )
    found.sort(key=lambda one: (one[0].loss, one[0].bytes))
    best, kept = found[0]
    draft = draft_of(trained, snapshot_of(trained, best.dtype, keys, kept=kept))
    draft = replace(draft, manifest=replace(draft.manifest, candidates=tuple(one for one, _ in found)))
    return write_draft(draft, trained, out, formats, TestRows(test.log, middle), threads, overwrite=overwrite)


def _batches(test: TestRows, end: int) -> Iterator[Batch]:
    return test.log.batches(test.start, end, EVALUATED)


@dataclass(frozen=True)
class _Choice:
    """A model of which rows are chosen: the place of each live row, table by table, among all by falling norm."""

    trained: TrainedModel
    keys: KeyFormat
    network: int  # bytes of its file
    places: Mapping[str, Tensor]

    @classmethod
    def of(cls, trained: TrainedModel, keys: KeyFormat) -> "_Choice":
        norms = {name: sorted_rows(table)[1].norm(dim=1) for name, table in tables_of(trained.model).items()}
        every = torch.cat(list(norms.values()))
        places = torch.empty(len(every), dtype=torch.int64)
        places[every.argsort(descending=True, stable=True)] = torch.arange(len(every))
        sizes = [len(some) for some in norms.values()]
        empty = {
            name: live_rows(table, "float32", keys, kept=torch.zeros(len(norms[name]), dtype=torch.bool))
            for name, table in tables_of(trained.model).items()
        }
        network = facts_of_tensors(other_weights(frozen_copy(trained.model, empty))).bytes
        return cls(trained, keys, network, dict(zip(norms, torch.split(places, sizes), strict=True)))

    def largest(self, count: int) -> Mapping[str, Tensor]:
        """Which rows of each table are among the `count` largest, `[n]` bool."""
        return {name: places < count for name, places in self.places.items()}

    def bytes_of(self, dtype: Dtype, kept: Mapping[str, Tensor]) -> tuple[dict[str, Embeddings], int]:
        """These rows of each table, and the bytes of their files."""
        rows = {
            name: live_rows(table, dtype, self.keys, kept=kept[name])
            for name, table in tables_of(self.trained.model).items()
        }
        return rows, sum(facts_of_tensors(some.tensors()).bytes for some in rows.values())

    def fitting(self, dtype: Dtype, most: int) -> tuple[Mapping[str, Tensor], dict[str, Embeddings], int] | None:
        """The largest rows that fit, nearly as many as possible, and the bytes of all; None if not even none do."""
        room = most - self.network
        empty = self.bytes_of(dtype, self.largest(0))[1]
        total = count = sum(map(len, self.places.values()))
        best = None
        while room >= empty and count >= 0:
            kept = self.largest(count)
            rows, size = self.bytes_of(dtype, kept)
            each = max(1.0, (size - empty) / max(1, count))
            if size > room:
                if best is not None:
                    break
                count = min(count - 1, int((room - empty) / each))
                continue
            best, more = (kept, rows, size + self.network), int((room - size) / each)
            if count == total or more <= count // 100:
                break
            count = min(total, count + more)
        return best
