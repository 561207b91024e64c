"""The group threshold: shapes of the penalty, and the norms that it compares with λ21."""

from sparsegroup.importing import document_constructors
from sparsegroup.names import NormName, PenaltyName
from sparsegroup.penalties.norm import MetricNorm, Norm, PracticalNorm, PrintedNorm
from sparsegroup.penalties.penalty import Penalty, parameter
from sparsegroup.penalties.shapes import MCP, Hard, Lasso

__all__ = [
    "MCP", "Hard", "Lasso", "MetricNorm", "Norm", "NormName", "Penalty", "PenaltyName", "PracticalNorm",
    "PrintedNorm", "parameter",
]  # fmt: skip

document_constructors(globals())
