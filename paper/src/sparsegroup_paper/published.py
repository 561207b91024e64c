"""The paper's own numbers, from `published.yaml`: Tables 2 to 9 and what the text of section 4 fixes."""

from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

Network = Literal["mlp", "opnn", "dcn"]
"""MLP on Avazu, OPNN on iPinYou, DCN on Criteo."""

Base = Literal["adam", "adagrad"]
"""An optimizer, and its group version."""


class Figures(BaseModel):
    """Numbers with names; other names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TableInfo(Figures):
    """A table of the paper: its number, and what it shows."""

    number: int
    caption: str


class Setup(Figures):
    """What holds in all of the paper's experiments.

    Attributes:
        batch_size: In samples.
        epochs: Over the training set.
        runs: How often each experiment is repeated, with other seeds.
        learning_rate_grid: From which Table 5's were chosen.
        fine_tune_shares: Shares of the training samples that are trained on after pruning.
        default_l2: That the paper calls a good default.
    """

    batch_size: int
    epochs: int
    runs: int
    learning_rate_grid: tuple[float, ...]
    fine_tune_shares: tuple[float, ...]
    default_l2: float


class NetworkInfo(Figures):
    """A network and its data set; counts are rounded, and None where the paper gives none.

    Attributes:
        dataset: Its name.
        embedding_dim: Values in an embedding vector.
        layers: Widths of the fully connected layers.
        cross_layers: Number of DCN's cross layers.
        dropout: Dropout of the fully connected layers.
        categorical, integer: Columns of each kind.
        samples, features: In all.
        train_samples, train_features: In the training set.
    """

    dataset: str
    embedding_dim: int
    layers: tuple[int, ...]
    cross_layers: int | None = None
    dropout: float | None = None
    categorical: int
    integer: int = 0
    samples: float
    features: float
    train_samples: float | None = None
    train_features: float


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
    """A cell of Table 3.

    Attributes:
        auc, feature_rate: Means of the original optimizer, not pruned.
        group_auc, group_feature_rate: Means of the group optimizer.
        auc_p_value, feature_rate_p_value: p-values of their differences.
        feature_rate_p_value_is_bound: Whether the paper says only that p is below this.
    """

    auc: float
    feature_rate: float
    group_auc: float
    group_feature_rate: float
    auc_p_value: float
    feature_rate_p_value: float
    feature_rate_p_value_is_bound: bool = False


class DimensionPoint(Figures):
    """A row of Table 4."""

    dimension: int
    feature_rate: float
    auc: float


class Lambdas(Figures):
    """A row of Table 6 or 7: strengths of the penalties."""

    l1: float
    l21: float
    l2: float


class FineTune(Figures):
    """A cell of Table 8.

    Attributes:
        feature_rate: To which Adam's embeddings were pruned.
        aucs: Share of the training samples used for fine-tuning → AUC.
        best_share: That the paper marks as the best.
    """

    feature_rate: float
    aucs: dict[float, float]
    best_share: float

    @property
    def best_auc(self) -> float:
        """At the best share."""
        return self.aucs[self.best_share]


class NormGrids(Figures):
    """Table 9: strengths of l21 tried with s and with s̃ inside the norm."""

    s: tuple[float, ...]
    s_tilde: tuple[float, ...]


class Published(Figures):
    """All of it.

    Attributes:
        source: The paper.
        tables: Name of an attribute below → its table; `lambdas` has two: "group_adam_lambdas" and
            "group_adagrad_lambdas".
        setup, networks, claims: From the text.
        sparsity: Table 2.
        best_auc: Table 3.
        embedding_dim: Table 4.
        learning_rates: Table 5.
        lambdas: Tables 6 and 7.
        fine_tune: Table 8.
        norm_grids: Table 9.
        notes: Where the paper disagrees with itself, or leaves something open.
    """

    source: str
    tables: dict[str, TableInfo]
    setup: Setup
    networks: dict[Network, NetworkInfo]
    claims: Claims
    sparsity: dict[Network, tuple[SparsityPoint, ...]]
    best_auc: dict[Network, dict[Base, BestAuc]]
    embedding_dim: tuple[DimensionPoint, ...]
    learning_rates: dict[Network, dict[Base, float]]
    lambdas: dict[Network, dict[Base, Lambdas]]
    fine_tune: dict[Network, tuple[FineTune, ...]]
    norm_grids: NormGrids
    notes: tuple[str, ...]


def read_published() -> dict[str, Any]:
    """The content of `published.yaml`."""
    content: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
    return content


@cache
def published() -> Published:
    """What the paper reports, read once.

    Example:
        >>> published().sparsity["dcn"][0].group_adam_auc
        0.8022
        >>> published().learning_rates["dcn"]["adam"], published().lambdas["dcn"]["adam"].l21
        (0.001, 0.0005)
    """
    return Published.model_validate(read_published())
