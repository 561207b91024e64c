"""A model as a server has it: onnxruntime's session, PyTorch's model to check and explain by, the reader of rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.data.batches import Batch
from sparsegroup.server.rows import BadRowsError, BadValue, RowReader, format_of_model
from sparsegroup.serving.explanation import explain
from sparsegroup.serving.exporting import TOLERANCE, keys_of, random_batches
from sparsegroup.serving.frozen_model import ServingModel, frozen_copy, load_other_weights
from sparsegroup.serving.manifest import ONNX, settings_of_answers
from sparsegroup.serving.onnx import graph_of, require_onnx, save_onnx, session_for, structure_in
from sparsegroup.serving.opening import Export
from sparsegroup.serving.rows import ExportError
from sparsegroup.training.model import LookupModel
from sparsegroup.training.predictions import UnseenValues, missing_number

Columns = Mapping[str, npt.NDArray[Any]]


class NotExplainableError(ExportError):
    """A model whose predictions have no explanation by columns."""


@dataclass(frozen=True)
class ServedRelease:
    """What is known of the published export that a model was made of; of a folder alone, its number is None.

    Attributes:
        number: Its number at its destination.
        id: The export's id.
        kind: "export" or "delta": how it came.
        bytes: Bytes of its files.
        published, read_until: Seconds since 1970: when it was published, and until when its training had read rows.
        details: Other facts, for people, such as samples and figures.
    """

    number: int | None
    id: str
    kind: str
    bytes: int
    published: float | None = None
    read_until: float | None = None
    details: Mapping[str, Any] | None = None


class LoadedModel:
    """A model that answers. Threads may share it.

    Args:
        export: The export.
        release: What is known of it.
        graph: An ONNX graph without rows, of `sparsegroup.serving.onnx.graph_of`, that may fit.
        earlier: A model whose parts are taken over where the columns and settings are the same.
        threads: Threads of onnxruntime for one request.
        schema: See `format_of_model`.

    Raises:
        ExportError: It cannot be loaded: a module without columns, a damaged file.
        ClickLogError: The settings do not tell how rows are read.

    Attributes:
        release, export: As given.
        columns: The columns that the model expects.
        reader: Makes batches of rows.
        objective: What predictions mean.
    """

    def __init__(
        self,
        export: Export,
        release: ServedRelease,
        earlier: "LoadedModel | None" = None,
        *,
        graph: bytes | None = None,
        threads: int = 1,
        schema: Path | None = None,
    ) -> None:
        require_onnx()
        self.export, self.release = export, release
        self.reader: RowReader
        self.model: ServingModel
        self._graph: bytes  # of the ONNX model, without rows
        self.columns, self.config = export.columns_and_config()
        alike = earlier if earlier is not None and _are_alike(earlier.export, export) else None
        if alike is None:
            self.reader = RowReader(format_of_model(self.config, self.columns, schema))
            model: LookupModel = export.model()
        else:
            self.reader = alike.reader
            model = frozen_copy(alike.model.model, export.tables)
            load_other_weights(model, export.network)
        self.model = ServingModel(model, self.columns)
        self.objective = self.model.model.objective
        self._unseen = UnseenValues(self.model.model.embedding, self.columns)
        earlier_graphs = [] if alike is None else [alike._graph]
        for self._graph in [*earlier_graphs, *([] if graph is None else [graph])]:
            if (session := session_for(self._graph, self.model, threads)) is not None:
                break
        else:
            self._graph = _graph_of(export, self.model)
            session = session_for(self._graph, self.model, threads)
        self._session = session
        self._names = [one.name for one in self._session.get_inputs()]

    def outputs(self, batch: Batch) -> npt.NDArray[np.float64]:
        """The predictions of a batch, `[n]`, or `[n, outputs]` where the objective has several."""
        if not len(batch):  # a few operators of onnxruntime take no empty lists
            return np.zeros((0, self.objective.outputs) if self.objective.outputs > 1 else 0)
        feeds = {name: one.numpy() for name, one in zip(self._names, self.model.arguments(batch), strict=True)}
        found: list[npt.NDArray[Any]] = self._session.run(None, feeds)
        return (found[0] if len(found) == 1 else np.stack(found, axis=1)).astype(np.float64)

    def unseen_in(self, batch: Batch) -> Mapping[str, tuple[int, int]]:
        """Return field → values in a batch, and values without a row; empty for most batches, see `UnseenValues`."""
        return self._unseen.add(batch)

    def predictions(self, batch: Batch) -> Columns:
        """Name → predictions `[n]` of a batch, as `sparsegroup predict` names its columns.

        Raises:
            BadRowsError: A number is missing that the model needs.
            FloatingPointError: A prediction is not a number although the row is complete.
        """
        found = self.outputs(batch)
        finite = np.isfinite(found).all(axis=tuple(range(1, found.ndim)))
        if not finite.all():
            bad = []
            for row in np.flatnonzero(~finite).tolist():
                error = missing_number(self.model, batch, slice(row, row + 1), 0)
                if error is None:
                    raise FloatingPointError(f"the prediction of row {row} is not finite")
                name = self.columns.numbers[error.column]
                bad.append(BadValue(row, name, f"{name!r} is missing or infinite, and the model needs a number"))
            raise BadRowsError(bad)
        columns: Columns = self.objective.columns(found)
        return columns

    def explained(
        self,
        batch: Batch,
        values: Sequence[Mapping[str, Any]],
        permutations: int,
        deadline: float | None = None,
    ) -> dict[str, Any]:
        """Return what each column contributes to the logit of each row, for JSON; see `explain`.

        Args:
            batch, values: Rows, and their values by column, both from `RowReader.with_values`.
            permutations, deadline: See `explain`.

        Raises:
            NotExplainableError: The objective has several outputs.
            BadRowsError: A number is missing that the model needs.
            TimeoutError: The deadline has passed.
        """
        if self.objective.outputs > 1:
            raise NotExplainableError(
                f"a model of one output can be explained, and {self.objective} has {self.objective.outputs}"
            )
        self.predictions(batch)  # which names missing numbers
        found = explain(self.model.model, self.columns, batch, permutations=permutations, deadline=deadline)
        predictions = self.objective.predict(torch.from_numpy(found.logits)).tolist()
        explained = []
        for row, given in enumerate(values):
            parts = [
                {"column": name, "value": given.get(name), "contribution": part, "error": error}
                for name, part, error in zip(
                    found.columns, found.contributions[row].tolist(), found.errors[row].tolist(), strict=True
                )
            ]
            parts.sort(key=lambda one: -abs(one["contribution"]))
            explained.append(
                {
                    self.objective.prediction: predictions[row],
                    "logit": float(found.logits[row]),
                    "contributions": parts,
                }
            )
        return {"reference": found.reference, "permutations": found.permutations, "rows": explained}

    def check(self) -> None:
        """Score made-up rows with onnxruntime and with PyTorch; the first scoring also warms up.

        Raises:
            ExportError: A prediction is not finite, or the two differ by more than 1e-5, relative to one above 1.
        """
        keys = keys_of(self.export.tables)
        for batch in random_batches(keys, self.columns, tasks=len(self.objective.tasks)):
            found = torch.from_numpy(self.outputs(batch))
            wanted = _stacked(self.model(*self.model.arguments(batch))).double()
            for what, values in (("in ONNX", found), ("in PyTorch", wanted)):
                if not bool(values.isfinite().all()):
                    raise ExportError(f"predictions {what} for made-up rows are not finite")
            apart = float(((found - wanted).abs() / wanted.abs().clamp(min=1)).max())
            if apart > TOLERANCE:
                raise ExportError(f"ONNX and PyTorch differ by {apart:.3g} for made-up rows, more than {TOLERANCE:g}")

    def described(self) -> dict[str, Any]:
        """What the model is, for JSON."""
        manifest = self.export.manifest
        return {
            "release": self.release.number,
            "id": self.release.id,
            "kind": self.release.kind,
            "bytes": self.release.bytes,
            "published": self.release.published,
            "read_until": self.release.read_until,
            **(self.release.details or {}),
            "objective": str(self.objective),
            "columns": list(self.reader.columns),
            "fields": list(self.columns.fields),
            "lists": list(self.columns.lists),
            "numbers": list(self.columns.numbers),
            "dtype": manifest.dtype,
            "live_rows": sum(map(len, self.export.tables.values())),
            "features_seen": manifest.features_seen,
            "model_bytes": sum(one.nbytes for one in self.model.state_dict().values()),
        }


def _are_alike(one: Export, other: Export) -> bool:
    """Return whether two exports differ in rows and weights only."""

    def form(export: Export) -> list[Any]:
        manifest = export.manifest
        tables = {name: (rows.dim, rows.vectors.dtype, rows.bits is None) for name, rows in export.tables.items()}
        network = {name: tensor.shape for name, tensor in export.network.items()}
        return [manifest.columns, settings_of_answers(manifest.config or {}), tables, network]

    return form(one) == form(other)


def _stacked(found: Tensor | tuple[Tensor, ...]) -> Tensor:
    return found if isinstance(found, Tensor) else torch.stack(found, 1)


def _graph_of(export: Export, model: ServingModel) -> bytes:
    """The ONNX graph without rows: the export's, or the model traced again, which takes seconds."""
    if export.manifest.kind == "export" and ONNX in export.manifest.files and (export.folder / ONNX).is_file():
        graph = graph_of((export.folder / ONNX).read_bytes())
        if structure_in(graph) == model.structure():  # not written by an earlier version
            return graph
    with TemporaryDirectory() as folder:
        path = Path(folder) / ONNX
        outputs = model.model.objective.output_names
        save_onnx(model.trace(), path, model.inputs, outputs, metadata=model.metadata())
        return graph_of(path.read_bytes())
