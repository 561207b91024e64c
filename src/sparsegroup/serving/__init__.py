"""From a trained model to a server: compact exports, ONNX, deltas, and a look inside."""

from sparsegroup.serving.deltas import apply_deltas, export_delta
from sparsegroup.serving.errors import ExportError
from sparsegroup.serving.export import export
from sparsegroup.serving.manifest import Manifest, read_manifest
from sparsegroup.serving.model import ServingModel
from sparsegroup.serving.opened import Opened, open_trained
from sparsegroup.serving.stored import Export, read_export
from sparsegroup.serving.testing import TestRows, open_test_rows
from sparsegroup.serving.writing import Wanted

__all__ = [
    "Export",
    "ExportError",
    "Manifest",
    "Opened",
    "ServingModel",
    "TestRows",
    "Wanted",
    "apply_deltas",
    "export",
    "export_delta",
    "open_test_rows",
    "open_trained",
    "read_export",
    "read_manifest",
]
