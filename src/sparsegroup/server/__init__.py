"""A model over HTTP, which takes each published release as it comes."""

from sparsegroup.errors import require
from sparsegroup.importing import document_constructors

require("serve", __name__)

from sparsegroup.server.app import Limits, create_app, listening, run
from sparsegroup.server.follower import ExportFolder, Fetched, Follower, Releases, RollbackError, Source, open_source
from sparsegroup.server.metrics import Metrics
from sparsegroup.server.model import LoadedModel, NotExplainableError, Release
from sparsegroup.server.rows import BadRowsError, BadValue, RowReader, format_of_model

__all__ = [
    "BadRowsError",
    "BadValue",
    "ExportFolder",
    "Fetched",
    "Follower",
    "Limits",
    "LoadedModel",
    "Metrics",
    "NotExplainableError",
    "Release",
    "Releases",
    "RollbackError",
    "RowReader",
    "Source",
    "create_app",
    "format_of_model",
    "listening",
    "open_source",
    "run",
]

document_constructors(globals())
