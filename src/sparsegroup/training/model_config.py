"""The network of a run and its table, as people write them down."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator
from torch import nn

from sparsegroup.data.log import Log
from sparsegroup.data.schema import LogSchema
from sparsegroup.errors import did_you_mean
from sparsegroup.models import ListPooling, NumberEncoder, WithNumbers, WithPooling
from sparsegroup.settings.names import ModelName
from sparsegroup.settings.yaml_settings import SettingsError, Share, StrictSettings
from sparsegroup.training.age import age_of
from sparsegroup.training.click_model import NETWORKS
from sparsegroup.training.network_options import check_network_options
from sparsegroup.training.optimizer_config import SizeSetting


def _age(given: object) -> object:
    age = age_of(given)
    return given if age.steps is None else age.steps


AgeSetting = Annotated[int | str, BeforeValidator(_age)]
"""A number of steps, or a text such as "7d"."""


class ModelConfig(StrictSettings):
    """The network over the embeddings.

    Attributes:
        name: The name of the network, see `sparsegroup.models`. "auto", in files, is as if none were given: the one
            that `sparsegroup.training.defaults` takes.
        dim: Embedding dimension; None is the network's default. It is 1 for "lr"; for "fm", "deepfm" and "xdeepfm" it
            counts a weight and the factors.
        dims: Field → embedding dimension of its own, for fields that should have another than `dim`: there is a table
            for each dimension, and what is below the largest becomes as long by a learned matrix, see `FieldTables`.
        hidden: Sizes of the hidden layers; None is the network's default.
        dropout: After each hidden layer, in [0, 1); None is the network's default.
        options: Further arguments of the network, such as `rank` and `stacked` of "dcnv2".
        fallback: Whether a learned vector per field stands in for features without a live row, see `HashEmbedding`. By
            default where a size is asked for.
        admit_after: Batches in which a feature must have come to get a row of its own.
        admit_sketch: Bytes of the sketch that counts these, see `MinCount`; None: they are counted exactly.
        evict_unseen: When dead features that have not come lose their row, see `UnusedFor`: after so many steps, or as
            the log's own time has it, "7d", say; 0 for never.
        max_table_bytes: What the table never exceeds, such as "2GB", see `HashEmbedding`.
        number_buckets: How many quantile buckets a number has, each with an embedding that joins those of the
            categorical fields, see `NumberEncoder`; 0 for none.
        attention: Field of several values → field of one value, the candidate, whose attention to the values makes one
            vector of them, see `ListPooling`; for other fields of several values it is their mean.
        standardize: Whether numbers are standardized, heavy-tailed ones after a signed logarithm, see `NumberEncoder`.
            Without either, the network takes them as they are.
        base_rate: Whether the logits start at the base rate of the log's first rows, see `start_network`.
    """

    name: ModelName = "dcn"
    dim: int | None = Field(default=None, ge=1, le=1 << 20)
    dims: dict[str, Annotated[int, Field(ge=1, le=1 << 20)]] = Field(default_factory=dict)
    hidden: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    dropout: Share | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    fallback: bool = False
    admit_after: int = Field(default=1, ge=1)
    admit_sketch: SizeSetting | None = None
    evict_unseen: AgeSetting = 0
    max_table_bytes: SizeSetting | None = None
    number_buckets: int = Field(default=0, ge=0, le=4096)
    standardize: bool = False
    base_rate: bool = False
    attention: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _without_auto(cls, content: Any) -> Any:
        if not isinstance(content, Mapping) or content.get("name") != "auto":
            return content
        return {name: value for name, value in content.items() if name != "name"}

    @model_validator(mode="after")
    def _suits_the_network(self) -> Self:
        check_network_options(NETWORKS[self.name], self._given(), self.options)
        if self.dims and self.name == "lr":
            raise ValueError("dims: lr has one weight per feature; leave them out, or take another model")
        if self.max_table_bytes is not None and any(size != self.vector_dim for size in self.dims.values()):
            raise ValueError(
                "max_table_bytes is the limit of one table, and with dims there are several: leave one of them out"
            )
        return self

    @property
    def vector_dim(self) -> int:
        """Length of an embedding: `dim`, or the network's default."""
        return NETWORKS[self.name].default_dim if self.dim is None else self.dim

    @property
    def network_dim(self) -> int:
        """Length of the vectors that the network is given: the largest of `vector_dim` and `dims`."""
        return max([self.vector_dim, *self.dims.values()])

    def sizes(self, columns: LogSchema) -> dict[int, int]:
        """Field's number in the columns of a log → length of its embeddings.

        Raises:
            ValueError: `dims` names a field that is not there.
        """
        self._check_dims(columns.fields)
        return {number: self.dims.get(name, self.vector_dim) for number, name in enumerate(columns.fields)}

    def check_fields(self, log: Log) -> None:
        """Raise SettingsError where `dims` names a field that a log has not."""
        try:
            self._check_dims(log.fields)
        except ValueError as error:
            raise SettingsError(f"{log.name}: model.{error}") from error

    def _check_dims(self, fields: Sequence[str]) -> None:
        for name in self.dims:
            if name not in fields:
                there = f"{did_you_mean(name, fields)} the fields are {', '.join(fields) or 'none'}".lstrip()
                raise ValueError(f"dims: there is no field {name!r}; {there}")

    def network(self, columns: LogSchema) -> nn.Module:
        """A freshly initialized network over the columns of a log. Draws from torch's generator.

        Raises:
            ValueError: A size that the network cannot have, or fields that the log has not.
        """
        given = {**self._given(), **self.options}
        fields, numbers = len(columns.fields), len(columns.numbers)
        encoded = numbers > 0 and (self.standardize or self.number_buckets > 0)
        more = numbers if encoded and self.number_buckets else 0
        network: nn.Module = NETWORKS[self.name](fields + more, self.network_dim, numbers, **given)
        if encoded:
            encoder = NumberEncoder(numbers, self.network_dim, self.number_buckets, self.standardize)
            network = WithNumbers(encoder, network)
        if self.attention:
            network = WithPooling(ListPooling(self.network_dim, self.queries(columns)), network)
        return network

    def queries(self, columns: LogSchema) -> dict[int, int]:
        """`attention` by the places that fields have among those of several values and those of one.

        Raises:
            ValueError: There are no such fields.
        """
        single = [name for name in columns.fields if name not in columns.lists]
        for name, known, what in (
            *((name, columns.lists, "several values") for name in self.attention),
            *((name, single, "one value") for name in self.attention.values()),
        ):
            if name not in known:
                there = ", ".join(known) or "none"
                raise ValueError(f"attention: {name!r} is no field of {what}; those are {there}")
        return {columns.lists.index(name): single.index(query) for name, query in self.attention.items()}

    def _given(self) -> dict[str, Any]:
        options: dict[str, Any] = {"hidden": self.hidden, "dropout": self.dropout}
        return {name: value for name, value in options.items() if value is not None}


WHEN_FEATURES_HAVE_ROWS = ("admit_after", "admit_sketch", "evict_unseen", "max_table_bytes")
"""Settings of a model that do not change what it computes from its rows."""
