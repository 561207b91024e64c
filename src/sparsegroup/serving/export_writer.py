"""Writing an export: its files, tested against each other, and the manifest that makes it whole."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsegroup.artifact.folder import atomic_folder
from sparsegroup.artifact.manifest import facts_of, facts_of_files
from sparsegroup.artifact.tensor_file import write_tensors
from sparsegroup.data.batches import Batch
from sparsegroup.serving.acceptance import RandomRows, Scorer, as_test, check_agreement, compare
from sparsegroup.serving.export_draft import ExportDraft, draft_of
from sparsegroup.serving.export_error import ExportError
from sparsegroup.serving.export_folder import check_free
from sparsegroup.serving.export_manifest import (
    EXPORT,
    NETWORK,
    ONNX,
    PROGRAM,
    ExportContent,
    ExportManifest,
    TestResult,
)
from sparsegroup.serving.export_request import ExportRequest
from sparsegroup.serving.frozen_model import FrozenModel
from sparsegroup.serving.onnx import OnnxModel, save_onnx
from sparsegroup.serving.program import load_program, save_program
from sparsegroup.serving.serving_model import ServingModel
from sparsegroup.serving.trained_model import TrainedModel
from sparsegroup.serving.vocabulary import save_vocabulary
from sparsegroup.settings.names import Dtype
from sparsegroup.training.lookup_model import LookupModel
from sparsegroup.training.run_dir import VOCABULARY


def export_trained(
    trained: TrainedModel,
    out: str | Path,
    dtype: Dtype = "float32",
    wanted: ExportRequest | None = None,
    *,
    overwrite: bool = False,
) -> ExportManifest:
    """Write the live rows and the network of a trained model into a folder.

    Args:
        trained: The model, of `open_trained`.
        out: The folder; it appears when it is complete.
        dtype: Format of the vectors.
        wanted: What else to write, and the test set.
        overwrite: Replace an export that is there.

    Raises:
        ExportError: `out` is taken; vectors that the format does not have; ONNX's packages are missing; a file that
            does not compute what PyTorch does. Nothing is written then.
        ClickLogError: The test log has other columns.
    """
    wanted = wanted or ExportRequest()
    check_free(Path(out), overwrite)
    if os.path.realpath(out) == os.path.realpath(trained.path):
        raise ExportError(f"{out}: an export cannot take the place of what it is made of")
    wanted.check(trained.columns)
    return write_export(draft_of(trained, dtype), Path(out), wanted, overwrite=overwrite)


def save_network(model: FrozenModel, path: Path) -> None:
    """Write all weights but the tables' rows; the same weights give the same bytes."""
    write_tensors(path, {name: tensor.contiguous() for name, tensor in model.other_weights.items()})


def write_export(parts: ExportDraft, out: Path, wanted: ExportRequest, *, overwrite: bool = False) -> ExportManifest:
    """Write a whole export; nothing is left behind if it fails.

    Raises:
        ExportError: `out` is taken; ONNX's packages are missing; files that do not compute what PyTorch does.
    """
    check_free(out, overwrite)
    with atomic_folder(out.absolute(), replace=overwrite) as folder:
        files = {name: folder / table.file for name, table in parts.draft.tables.items()}
        for name, rows in parts.tables.items():
            rows.save(files[name])
        save_network(parts.model, folder / NETWORK)
        if parts.vocabularies:
            save_vocabulary(parts.vocabularies, parts.keys, folder / VOCABULARY)
        facts = {name: facts_of(path) for name, path in files.items()}
        content = ExportContent(tables=facts, network=facts_of(folder / NETWORK))
        draft = replace(parts.draft, content=content).with_id()
        test = make_and_test(replace(parts, draft=draft), folder, wanted)
        return EXPORT.write(folder, replace(draft, files=facts_of_files(folder), test=test))


def make_and_test(parts: ExportDraft, folder: Path, wanted: ExportRequest) -> TestResult | None:
    """Write the models that are wanted, and compare what they give.

    Raises:
        ExportError: They differ.
    """
    columns, _ = parts.draft.columns_and_config()
    model = ServingModel(parts.model.embedding, parts.model.network, columns)
    scorers: dict[str, Scorer] = {}
    if parts.trained is not None:
        scorers["training"] = _trained_scorer(parts.trained)
    scorers["export"] = _torch_scorer(model, model)
    traced = model.trace() if wanted.onnx or wanted.program else None
    if wanted.onnx and traced is not None:
        metadata = model.metadata() | {"export": parts.draft.id}
        save_onnx(traced, folder / ONNX, model.inputs, metadata=metadata)
        scorers["onnx"] = _onnx_scorer(model, OnnxModel(folder / ONNX, wanted.threads))
    if wanted.program and traced is not None:
        save_program(traced, folder / PROGRAM)
        scorers["program"] = _torch_scorer(model, load_program(folder / PROGRAM))
    rows = RandomRows(parts.keys, columns) if wanted.test is None else wanted.test
    scores = compare(rows, scorers, parts.model)
    check_agreement(scores, exact=parts.draft.dtype == "float32")
    return None if wanted.test is None else as_test(wanted.test, scores)


def _trained_scorer(model: LookupModel) -> Scorer:
    """Probabilities by the model as it was trained."""

    @torch.no_grad()
    def score(batch: Batch) -> npt.NDArray[np.float32]:
        logits: Tensor = model(batch.keys, batch.numbers, batch.bags)
        return logits.sigmoid().numpy()

    return score


def _torch_scorer(model: ServingModel, runs: nn.Module) -> Scorer:
    @torch.no_grad()
    def score(batch: Batch) -> npt.NDArray[np.float32]:
        probabilities: Tensor = runs(*model.arguments(batch))
        return probabilities.numpy()

    return score


def _onnx_scorer(model: ServingModel, runs: OnnxModel) -> Scorer:
    return lambda batch: runs(model.arguments(batch))
