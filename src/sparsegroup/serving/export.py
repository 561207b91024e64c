"""Whole exports of trained models."""

from pathlib import Path

from sparsegroup.serving.export_error import ExportError
from sparsegroup.serving.folder import check_free
from sparsegroup.serving.manifest import Manifest
from sparsegroup.serving.parts import parts_of
from sparsegroup.serving.quantize import Dtype
from sparsegroup.serving.trained_model import TrainedModel
from sparsegroup.serving.writing import Wanted, write_export


def export(
    trained: TrainedModel,
    out: str | Path,
    dtype: Dtype = "float32",
    wanted: Wanted | None = None,
    *,
    overwrite: bool = False,
) -> Manifest:
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
        RunError: The test log has other columns.
    """
    wanted = wanted or Wanted()
    check_free(Path(out), overwrite)
    if Path(out).resolve() == trained.path.resolve():
        raise ExportError(f"{out}: an export cannot take the place of what it is made of")
    wanted.check(trained.columns)
    return write_export(parts_of(trained, dtype), Path(out), wanted, overwrite=overwrite)
