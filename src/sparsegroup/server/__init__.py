"""A model over HTTP, which takes each published release as it comes."""

from sparsegroup.errors import require
from sparsegroup.importing import document_constructors

require("serve", __name__)

from sparsegroup.server.app import Limits, create_app
from sparsegroup.server.connections import listening, run
from sparsegroup.server.follower import (
    ExportFolder,
    Fetched,
    ReleaseFollower,
    Releases,
    ReleaseSource,
    RollbackError,
    open_releases,
)
from sparsegroup.server.metrics import Metrics
from sparsegroup.server.model import LoadedModel, NotExplainableError, ServedRelease
from sparsegroup.server.rows import BadRowsError, BadValue, RowReader, format_of_model

__all__ = [
    "BadRowsError",
    "BadValue",
    "ExportFolder",
    "Fetched",
    "Limits",
    "LoadedModel",
    "Metrics",
    "NotExplainableError",
    "ReleaseFollower",
    "ReleaseSource",
    "Releases",
    "RollbackError",
    "RowReader",
    "ServedRelease",
    "create_app",
    "format_of_model",
    "listening",
    "open_releases",
    "run",
]

document_constructors(globals())
