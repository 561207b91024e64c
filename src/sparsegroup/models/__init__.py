"""The paper's click models (§4.1): plain modules over embeddings `[batch, fields, dim]` and numbers `[batch, n]`."""

from sparsegroup.models.dcn import DCN
from sparsegroup.models.mlp import MLP
from sparsegroup.models.opnn import OPNN

__all__ = ["DCN", "MLP", "OPNN"]
