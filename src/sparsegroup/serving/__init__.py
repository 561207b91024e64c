"""From a trained model to a server: compact exports, ONNX, deltas, and a look inside."""

from sparsegroup.errors import require
from sparsegroup.importing import document_constructors

require("cli", __name__)

from sparsegroup.serving.acceptance import TestRows, open_test_rows
from sparsegroup.serving.deltas import apply_deltas, export_delta
from sparsegroup.serving.export_error import ExportError
from sparsegroup.serving.export_manifest import ExportManifest, read_manifest
from sparsegroup.serving.export_reader import Export, read_export
from sparsegroup.serving.export_request import ExportRequest
from sparsegroup.serving.export_writer import export_trained
from sparsegroup.serving.frozen_model import FrozenModel
from sparsegroup.serving.module_export import export, load_export
from sparsegroup.serving.serving_model import ServingModel
from sparsegroup.serving.trained_model import TrainedModel, open_trained

__all__ = [
    "Export",
    "ExportError",
    "ExportManifest",
    "ExportRequest",
    "FrozenModel",
    "ServingModel",
    "TestRows",
    "TrainedModel",
    "apply_deltas",
    "export",
    "export_delta",
    "export_trained",
    "load_export",
    "open_test_rows",
    "open_trained",
    "read_export",
    "read_manifest",
]

document_constructors(globals())
