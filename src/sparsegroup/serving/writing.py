"""Writing an export: its files, tested against each other, and the manifest that makes it whole."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sparsegroup.data.batches import Batch
from sparsegroup.serving.acceptance import RandomRows, Scorer, TestRows, as_test, check_agreement, compare
from sparsegroup.serving.embeddings import Embeddings
from sparsegroup.serving.folder import describe, new_folder
from sparsegroup.serving.manifest import EMBEDDINGS, NETWORK, ONNX, PROGRAM, Content, Manifest, Test
from sparsegroup.serving.onnx import OnnxModel, require_onnx, save_onnx
from sparsegroup.serving.program import load_program, save_program, trace
from sparsegroup.serving.serving_model import ServingModel
from sparsegroup.serving.vocabulary import save_vocabulary
from sparsegroup.training import ClickModel
from sparsegroup.training.input_columns import Columns
from sparsegroup.training.run_dir import VOCABULARY


@dataclass(frozen=True)
class Parts:
    """What is to be written.

    Attributes:
        draft: The manifest, but for what follows from the files.
        embeddings: The live rows.
        network: The network over them.
        vocabularies: Files of key, field and value.
        trained: The model as it was trained, if it is at hand.
    """

    draft: Manifest
    embeddings: Embeddings
    network: nn.Module
    vocabularies: Sequence[Path]
    trained: ClickModel | None = None


@dataclass(frozen=True)
class Wanted:
    """What to write beside embeddings and network, and what to test it on.

    Attributes:
        onnx: `model.onnx`.
        program: `model.pt2`.
        test: None tests on made up rows; then no AUC is recorded.
        threads: That share onnxruntime's work in the test.
    """

    onnx: bool = False
    program: bool = False
    test: TestRows | None = None
    threads: int = 1

    def check(self, columns: Columns) -> None:
        """Whether this can be had of a model with such columns.

        Raises:
            ExportError: ONNX's packages are missing.
            RunError: The test log has other columns.
        """
        if self.onnx:
            require_onnx()
        if self.test is not None:
            columns.check(self.test.log)


def save_network(network: nn.Module, path: Path) -> None:
    """Write the network's `state_dict`; the same weights give the same bytes."""
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, path)


def write_export(parts: Parts, out: Path, wanted: Wanted, *, overwrite: bool = False) -> Manifest:
    """Write a whole export; nothing is left behind if it fails.

    Raises:
        ExportError: `out` is taken; ONNX's packages are missing; files that do not compute what PyTorch does.
    """
    with new_folder(out, overwrite) as folder:
        parts.embeddings.save(folder / EMBEDDINGS)
        save_network(parts.network, folder / NETWORK)
        if parts.vocabularies:
            save_vocabulary(parts.vocabularies, parts.embeddings.keys, folder / VOCABULARY)
        content = Content(embeddings=describe(folder / EMBEDDINGS), network=describe(folder / NETWORK))
        draft = parts.draft.model_copy(update={"content": content}).with_id()
        test = make_and_test(replace(parts, draft=draft), folder, wanted)
        manifest = draft.model_copy(
            update={
                "files": {path.name: describe(path) for path in sorted(folder.iterdir())},
                "test": test,
            }
        )
        manifest.write(folder)
    return manifest


def make_and_test(parts: Parts, folder: Path, wanted: Wanted) -> Test | None:
    """Write the models that are wanted, and compare what they give.

    Raises:
        ExportError: They differ.
    """
    columns, _ = parts.draft.columns_and_config()
    model = ServingModel(parts.embeddings, parts.network, columns)
    scorers: dict[str, Scorer] = {}
    if parts.trained is not None:
        scorers["training"] = _trained_scorer(parts.trained)
    scorers["export"] = _torch_scorer(model, model)
    traced = trace(model) if wanted.onnx or wanted.program else None
    if wanted.onnx and traced is not None:
        save_onnx(model, traced, folder / ONNX, {"export": parts.draft.id})
        scorers["onnx"] = _onnx_scorer(model, OnnxModel(folder / ONNX, wanted.threads))
    if wanted.program and traced is not None:
        save_program(traced, folder / PROGRAM)
        scorers["program"] = _torch_scorer(model, load_program(folder / PROGRAM))
    rows = RandomRows(parts.embeddings.keys, columns) if wanted.test is None else wanted.test
    scores = compare(rows, scorers)
    check_agreement(scores, exact=parts.draft.dtype == "float32")
    return None if wanted.test is None else as_test(wanted.test, scores)


def _trained_scorer(model: ClickModel) -> Scorer:
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
