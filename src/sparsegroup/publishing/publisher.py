"""How a training that never ends publishes its model: one whole export, then deltas, then a whole one again."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from sparsegroup.artifact.folder import rename
from sparsegroup.artifact.manifest import Parent, facts_of_files
from sparsegroup.artifact.tensor_file import write_tensors
from sparsegroup.publishing.destinations import Destination, open_destination
from sparsegroup.publishing.releases import Release, ReleaseKind, deltas_since, folder_of, growth, kept
from sparsegroup.publishing.subscriber import Served, Subscriber
from sparsegroup.serving.deltas import obstacle, write_changes
from sparsegroup.serving.exporting import (
    MODEL_FILES,
    Draft,
    check_formats,
    completed,
    identified,
    save_vocabulary,
    snapshot_of,
)
from sparsegroup.serving.manifest import MANIFEST, NETWORK, ONNX
from sparsegroup.serving.onnx import graph_of, has_onnx, with_rows
from sparsegroup.serving.opening import Export, TrainedModel
from sparsegroup.serving.rows import ExportError, difference
from sparsegroup.settings.names import Dtype, KeyFormat, ProgramName

MOST_DELTAS = 200
"""Deltas after a whole export, at most: what a server reads at each look names them all."""


TRACING_SECONDS = 900.0
"""Time limit of the process that traces a model."""


class Publisher:
    """Publishes a model again and again at a destination; it continues what an earlier process has published there.

    The first release is a whole export. Those after it are deltas. When the deltas since the last whole export are
    larger than it, or are 200, the model is published as a whole as well; and instead, when no delta leads to it: the
    model has another network or other columns, or many more rows than its fingerprints have bits for.

    Args:
        destination: A destination, or what `open_destination` takes.
        dtype: Format of the vectors.
        keys: Format of the keys, "full" or "fingerprints", see `export_trained`.
        formats: What whole exports hold in addition: "onnx" and "program". None: "onnx" if its packages are installed.
        compact_after: How large the deltas since a whole export may become, in parts of its bytes, ≥ 0.
        keep: How many whole exports, and all that follows the first of them, remain for servers that go back, ≥ 1.

    Raises:
        PublishError: Another process publishes there, or the latest release there cannot be read.
        ValueError: A number out of range, or an unknown format.
        ExportError: ONNX's packages are missing.

    Attributes:
        latest: The latest release; None before the first.
        served: The export that it leads to, in memory.
    """

    def __init__(
        self,
        destination: Destination | str | Path,
        *,
        dtype: Dtype = "float32",
        keys: KeyFormat = "full",
        formats: Collection[ProgramName] | None = None,
        compact_after: float = 1.0,
        keep: int = 5,
    ) -> None:
        if not compact_after >= 0:
            raise ValueError(f"compact_after must be >= 0, got {compact_after}")
        if keep < 1:
            raise ValueError(f"keep must be >= 1, got {keep}")
        if formats is None:
            formats = ["onnx"] if has_onnx() else []
        check_formats(formats)
        self.destination = destination if isinstance(destination, Destination) else open_destination(destination)
        self._keys = keys
        self._dtype, self._formats, self._compact_after, self._keep = dtype, tuple(formats), compact_after, keep
        self.latest: Release | None = None
        self.served: Export | None = None
        self._graph: bytes | None = None
        self._releases: tuple[Release, ...] = ()
        self._load()

    def _load(self) -> None:
        """Take over what is published."""
        self._is_sure = False
        self.destination.claim()
        self._releases = self.destination.releases()
        have = None
        if self.latest is not None and self.served is not None:
            have = Served(self.latest, self.served, self._graph)
        if self._releases:
            found = Subscriber(self.destination).catch_up(have)
            self.latest, self.served, self._graph = found.release, found.export, found.onnx
        self._is_sure = True

    def draft(self, trained: TrainedModel) -> Export:
        """A copy of a model's live rows and weights, for `publish`. Training must pause until it returns.

        Raises:
            ExportError: Vectors that the format does not have, or that are not finite.
        """
        base = None if self.served is None else self.served.tables
        return snapshot_of(trained, self._dtype, self._keys, base)

    def publish(
        self,
        draft: Export,
        *,
        samples: int,
        learnt_until: float | None = None,
        read_until: float | None = None,
        run: str = "",
        figures: Mapping[str, float] | None = None,
    ) -> Release | None:
        """Publish a draft. It may run in another thread, one at a time, while training continues.

        Args:
            draft: What `draft` gave.
            samples, learnt_until, read_until, run, figures: See `Release`.

        Returns:
            The latest release; None if the model is the one that is published already.

        Raises:
            PublishError: Another process publishes there, or the destination cannot be reached.
            ExportError: A weight is not a number; a file that does not compute what the model does.
            OSError: The disk is full. The releases are then as before, and the next call publishes what is missing.
        """
        if not self._is_sure:
            self._load()
        new = identified(draft)
        if self.served is not None and new.manifest.id == self.served.manifest.id:
            return None
        for name, weights in new.network.items():
            if bool(weights.isnan().any()):
                raise ExportError(
                    f"{name}: is not a number somewhere: training has diverged; there is nothing to serve"
                )
        about = {
            "samples": samples,
            "learnt_until": learnt_until,
            "read_until": read_until,
            "run": run,
            "figures": {} if figures is None else dict(figures),
        }
        self._is_sure = False
        published = self._publish_delta(new, about)
        if not published or self._must_compact:
            self._publish_export(new, about)
        self._is_sure = True
        return self.latest

    @property
    def releases(self) -> tuple[Release, ...]:
        """All that can be fetched, by rising number."""
        return self._releases

    @property
    def _must_compact(self) -> bool:
        return growth(self._releases) > self._compact_after or deltas_since(self._releases) >= MOST_DELTAS

    def _publish_delta(self, new: Export, about: Mapping[str, Any]) -> bool:
        """Publish the way from the latest release; False if there is none that is small enough."""
        latest, served = self.latest, self.served
        if latest is None or served is None or obstacle(served, new.manifest, new.tables) is not None:
            return False
        changes = {name: difference(served.tables[name], rows) for name, rows in new.tables.items()}
        with self._scratch() as scratch:
            folder = Path(scratch)
            write_tensors(folder / NETWORK, new.network)
            save_vocabulary(new.vocabularies, [one.upserts for one in changes.values()], folder)
            parent = Parent(latest.id, f"../{latest.folder}")
            completed(folder, write_changes(folder, new.manifest, parent, changes))
            release = self._release("delta", folder, new, latest.number, about)
            whole = [one for one in self._releases if one.kind == "export"][-1]
            if release.bytes >= self._compact_after * whole.bytes:
                return False
            self._add(folder, release, new)
        return True

    def _publish_export(self, new: Export, about: Mapping[str, Any]) -> None:
        with self._scratch() as scratch:
            folder = Path(scratch)
            for name, rows in new.tables.items():
                rows.save(folder / new.manifest.tables[name].file)
            write_tensors(folder / NETWORK, new.network)
            save_vocabulary(new.vocabularies, new.tables.values(), folder)
            if self._must_trace(new):
                completed(folder, new.manifest)
                self._add_traced(folder, new.manifest.dtype)
                (folder / MANIFEST).unlink()
            else:
                draft = Draft(new.manifest, new.tables, new.model(), new.vocabularies)
                draft.add_models(folder, new.manifest, None, self._formats, graph=self._graph)
            completed(folder, new.manifest)
            if "onnx" in self._formats:
                self._graph = graph_of((folder / ONNX).read_bytes())
            self._add(folder, self._release("export", folder, new, None, about), new)

    def _must_trace(self, new: Export) -> bool:
        """Whether the files of a whole export are made by tracing the model."""
        if "program" in self._formats:
            return True
        return "onnx" in self._formats and (self._graph is None or with_rows(self._graph, new.serving_model()) is None)

    def _add_traced(self, folder: Path, dtype: Dtype) -> None:
        """Add the traced files to a whole export: in another process, because all threads of one seem to trace.

        They are compared there with what PyTorch computes.
        """
        with self._scratch() as scratch:
            out, options = Path(scratch) / "export", ["--onnx" if "onnx" in self._formats else "--no-onnx"]
            options += ["--dtype", dtype, *(["--program"] if "program" in self._formats else [])]
            command = [sys.executable, "-m", "sparsegroup", "export", str(folder), str(out), *options, "--quiet"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=TRACING_SECONDS)
            except subprocess.TimeoutExpired:
                names = " and ".join(map(MODEL_FILES.__getitem__, self._formats))
                raise ExportError(
                    f"{names} took more than {TRACING_SECONDS:.0f} seconds; leave the format out (`formats`)", "formats"
                ) from None
            if done.returncode:
                raise ExportError(f"the model cannot be written: {(done.stderr.splitlines() or ['no message'])[-1]}")
            for name in map(MODEL_FILES.__getitem__, self._formats):
                for path in out.glob(f"{name}*"):  # of a large model, also its weights
                    rename(path, folder / path.name)

    def _scratch(self) -> tempfile.TemporaryDirectory[str]:
        """A folder for a release's files, which a later process removes if this one is killed."""
        return tempfile.TemporaryDirectory(prefix=".unfinished-", dir=self.destination.scratch)

    def _release(
        self, kind: ReleaseKind, folder: Path, new: Export, parent: int | None, about: Mapping[str, Any]
    ) -> Release:
        number = 1 + (self.latest.number if self.latest is not None else 0)
        files = facts_of_files(folder)
        size = sum(facts.bytes for facts in files.values())
        name = folder_of(number, kind) + self.destination.suffix
        return Release(number, kind, name, new.manifest.id, parent, size, files, time.time(), **about)

    def _add(self, folder: Path, release: Release, new: Export) -> None:
        releases = (*self._releases, release)
        keep = kept(releases, self._keep)
        self.destination.publish(folder, release, keep)
        self._releases = tuple(one for one in releases if one.number in keep)
        self.latest, self.served = release, replace(new, vocabularies=())

    def close(self) -> None:
        """Let other processes publish there."""
        self.destination.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
