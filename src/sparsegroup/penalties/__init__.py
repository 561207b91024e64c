"""The group threshold: shapes of the penalty, one file each, and the norms that it compares with λ21."""

from sparsegroup.constructor_help import document_constructors
from sparsegroup.names import NormName, PenaltyName
from sparsegroup.penalties.hard import Hard
from sparsegroup.penalties.lasso import Lasso
from sparsegroup.penalties.mcp import MCP
from sparsegroup.penalties.norm import MetricNorm, Norm, PracticalNorm, PrintedNorm
from sparsegroup.penalties.part import parameter
from sparsegroup.penalties.penalty import Penalty

__all__ = [
    "MCP", "Hard", "Lasso", "MetricNorm", "Norm", "NormName", "Penalty", "PenaltyName", "PracticalNorm",
    "PrintedNorm", "parameter",
]  # fmt: skip

document_constructors(globals())
