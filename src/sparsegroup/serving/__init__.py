"""From a trained model to a server: compact exports, ONNX, deltas, a look inside, and why it predicts what it does."""

from sparsegroup.errors import require
from sparsegroup.importing import document_constructors

require("cli", __name__)

from sparsegroup.serving.choosing import export_within
from sparsegroup.serving.deltas import apply_deltas, export_delta
from sparsegroup.serving.evaluation import TestRows, open_test_rows, recalibrate_on
from sparsegroup.serving.explanation import Explanation, explain
from sparsegroup.serving.exporting import export, export_trained, load_export
from sparsegroup.serving.frozen_model import ServingModel
from sparsegroup.serving.manifest import ExportManifest, read_manifest
from sparsegroup.serving.opening import Export, TrainedModel, open_trained, read_export
from sparsegroup.serving.rows import ExportError

__all__ = [
    "Explanation",
    "Export",
    "ExportError",
    "ExportManifest",
    "ServingModel",
    "TestRows",
    "TrainedModel",
    "apply_deltas",
    "explain",
    "export",
    "export_delta",
    "export_trained",
    "export_within",
    "load_export",
    "open_test_rows",
    "open_trained",
    "read_export",
    "read_manifest",
    "recalibrate_on",
]

document_constructors(globals())
