"""Click models: plain modules over embeddings `[batch, fields, dim]` and numbers `[batch, n]`."""

from sparsegroup.importing import document_constructors
from sparsegroup.models.attention import ListPooling, WithPooling
from sparsegroup.models.dcn import DCN
from sparsegroup.models.dcnv2 import DCNv2
from sparsegroup.models.deepfm import DeepFM
from sparsegroup.models.fm import FM
from sparsegroup.models.layers import WithHeads
from sparsegroup.models.logistic import LR
from sparsegroup.models.mlp import MLP
from sparsegroup.models.multi_task import PLE, MMoE
from sparsegroup.models.number_encoder import NumberEncoder, WithNumbers
from sparsegroup.models.opnn import OPNN
from sparsegroup.models.pairs import PairKeys, WithPairs
from sparsegroup.models.xdeepfm import XDeepFM

__all__ = [
    "DCN",
    "FM",
    "LR",
    "MLP",
    "OPNN",
    "PLE",
    "DCNv2",
    "DeepFM",
    "ListPooling",
    "MMoE",
    "NumberEncoder",
    "PairKeys",
    "WithHeads",
    "WithNumbers",
    "WithPairs",
    "WithPooling",
    "XDeepFM",
]

document_constructors(globals())
