"""A trained model as it is served: the live rows at the precision of an export, and the network."""

from collections.abc import Mapping
from copy import deepcopy

from torch import Tensor, nn

from sparsegroup.serving.embeddings import Embeddings
from sparsegroup.serving.export_error import ExportError
from sparsegroup.serving.export_manifest import TABLE
from sparsegroup.serving.frozen_copy import frozen_copy, load_other_weights, other_weights, tables_of
from sparsegroup.serving.frozen_table import FrozenTable
from sparsegroup.table import FieldTables
from sparsegroup.training.lookup_model import LookupModel


class FrozenModel(LookupModel):
    """Keys → logits, as training computes them, over vectors that don't change; in evaluation mode.

    Args:
        embeddings: The live rows, or the lookup of them: with several tables, a `FieldTables` of lookups.
        network: A network of `sparsegroup.models`, of which this takes a copy.
    """

    embedding: FrozenTable | FieldTables

    def __init__(self, embeddings: Embeddings | FrozenTable | FieldTables, network: nn.Module) -> None:
        if isinstance(embeddings, Embeddings):
            lookup: nn.Module = FrozenTable(embeddings.keys, embeddings.vectors, embeddings.fallback)
        else:
            lookup = embeddings
        super().__init__(lookup, deepcopy(network))
        self.requires_grad_(False)
        self.eval()

    @classmethod
    def of(cls, model: LookupModel, rows: Mapping[str, Embeddings]) -> "FrozenModel":
        """What serves a trained model; `rows`: name of a table in it → its live rows."""
        copy = frozen_copy(model, tables_of(model), rows)
        assert isinstance(copy, LookupModel)
        assert isinstance(copy.embedding, FrozenTable | FieldTables)
        return cls(copy.embedding, copy.network)

    @property
    def other_weights(self) -> dict[str, Tensor]:
        """The `state_dict` of the network, and, by their names in this, what else is no row of a table."""
        beside = {f"{TABLE}.{name}": weight for name, weight in other_weights(self.embedding).items()}
        return {**self.network.state_dict(), **beside}

    def load_other_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Set what `other_weights` gives.

        Raises:
            ExportError: They are not those of such a model.
        """
        has_more = isinstance(self.embedding, FieldTables)
        beside = {name for name in weights if has_more and name.startswith(f"{TABLE}.")}
        try:
            self.network.load_state_dict({name: weight for name, weight in weights.items() if name not in beside})
        except RuntimeError as error:
            raise ExportError(str(error)) from error
        load_other_weights(self.embedding, {name.removeprefix(f"{TABLE}."): weights[name] for name in sorted(beside)})

    @property
    def rows(self) -> dict[str, FrozenTable]:
        """What can be read of the rows of each table, by its name."""
        return {name: module for name, module in self.named_modules() if isinstance(module, FrozenTable)}
