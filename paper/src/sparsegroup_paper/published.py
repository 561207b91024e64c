"""The paper's own numbers, from `published.yaml`: what the experiments take of Tables 2 to 9 and of section 4."""

from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from sparsegroup.penalties import NormName

Network = Literal["mlp", "opnn", "dcn"]
"""MLP on Avazu, OPNN on iPinYou, DCN on Criteo."""

Base = Literal["adam", "adagrad"]
"""An optimizer, and its group version."""


Lambda = Literal["l1", "l21", "l2"]


class Figures(BaseModel):
    """Numbers with names."""

    model_config = ConfigDict(frozen=True)


class Setup(Figures):
    """Section 4.1: seeds of each experiment, learning rates tried, and shares of the samples for fine-tuning."""

    runs: int
    learning_rate_grid: tuple[float, ...]
    fine_tune_shares: tuple[float, ...]


class NetworkInfo(Figures):
    """A network's data set, and the values in its embedding vectors."""

    dataset: str
    embedding_dim: int


class Claims(Figures):
    """What the text says of Table 2.

    Attributes:
        confidence: Level of significance.
        share_significant: Share of all comparisons that are significant.
        low_feature_rate: Below which the next share is counted.
        share_significant_at_low_rate: Share of the comparisons there.
    """

    confidence: float
    share_significant: float
    low_feature_rate: float
    share_significant_at_low_rate: float


class SparsityPoint(Figures):
    """A cell of Table 2: Group Adam at a strength of l21, and Adam pruned to the same feature rate."""

    l21: float
    feature_rate: float
    adam_auc: float
    group_adam_auc: float
    p_value: float


class BestAuc(Figures):
    """A cell of Table 3: means of the original optimizer, not pruned, and of its group version, and the AUCs' p."""

    auc: float
    group_auc: float
    group_feature_rate: float
    auc_p_value: float


class DimensionPoint(Figures):
    """A row of Table 4."""

    dimension: int
    feature_rate: float
    auc: float


class FineTune(Figures):
    """A cell of Table 8: the rate Adam's embeddings were pruned to, and share of samples for fine-tuning → AUC."""

    feature_rate: float
    aucs: dict[float, float]


class Published(Figures):
    """All of it: Tables 2, 3, 4, 5, 6 and 7 (`lambdas`), 8, and 9 (`norm_grids`, λ21 tried with s and with s̃)."""

    source: str
    setup: Setup
    networks: dict[Network, NetworkInfo]
    claims: Claims
    sparsity: dict[Network, tuple[SparsityPoint, ...]]
    best_auc: dict[Network, dict[Base, BestAuc]]
    embedding_dim: tuple[DimensionPoint, ...]
    learning_rates: dict[Network, dict[Base, float]]
    lambdas: dict[Network, dict[Base, dict[Lambda, float]]]
    fine_tune: dict[Network, tuple[FineTune, ...]]
    norm_grids: dict[NormName, tuple[float, ...]]


def read_published() -> dict[str, Any]:
    """The content of `published.yaml`, which has more numbers than are compared with."""
    content: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
    return content


@cache
def published() -> Published:
    """What the paper reports, read once.

    Example:
        >>> published().sparsity["dcn"][0].group_adam_auc
        0.8022
        >>> published().learning_rates["dcn"]["adam"], published().lambdas["dcn"]["adam"]["l21"]
        (0.001, 0.0005)
    """
    return Published.model_validate(read_published())
