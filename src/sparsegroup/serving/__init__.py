"""From a trained model to a server: compact exports, ONNX, deltas, and a look inside."""

from sparsegroup.serving.acceptance import TestRows, open_test_rows
from sparsegroup.serving.deltas import apply_deltas, export_delta
from sparsegroup.serving.export import export
from sparsegroup.serving.export_error import ExportError
from sparsegroup.serving.manifest import Manifest, read_manifest
from sparsegroup.serving.serving_model import ServingModel
from sparsegroup.serving.stored import Export, read_export
from sparsegroup.serving.trained_model import TrainedModel, open_trained
from sparsegroup.serving.writing import Wanted

__all__ = [
    "Export",
    "ExportError",
    "Manifest",
    "ServingModel",
    "TestRows",
    "TrainedModel",
    "Wanted",
    "apply_deltas",
    "export",
    "export_delta",
    "open_test_rows",
    "open_trained",
    "read_export",
    "read_manifest",
]
