"""Click models: plain modules over embeddings `[batch, fields, dim]` and numbers `[batch, n]`."""

from sparsegroup.models.dcn import DCN
from sparsegroup.models.mlp import MLP
from sparsegroup.models.number_encoder import NumberEncoder, WithNumbers
from sparsegroup.models.opnn import OPNN

__all__ = ["DCN", "MLP", "OPNN", "NumberEncoder", "WithNumbers"]
