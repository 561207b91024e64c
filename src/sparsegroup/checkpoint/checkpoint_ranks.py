"""The ranks that write or read one checkpoint together."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from sparsegroup.checkpoint.checkpoint_error import CheckpointError
from sparsegroup.table.field_tables import tables_in
from sparsegroup.table.sharded.exchange import Shards
from sparsegroup.table.sharded.routing import Routing
from sparsegroup.table.table import Table

Result = TypeVar("Result")


class CheckpointRanks:
    """The ranks that a model's tables are sharded over; one process without sharded tables counts as one rank.

    Args:
        model: The model.
        operation: Names the work in messages of `ExchangeError`: "writing a checkpoint".

    Attributes:
        tables: Name of each table in the model → its rows.
        rank: The number of this rank.
        routing: Which rank has which key.

    Raises:
        CheckpointError: The tables are not all on the same ranks.
    """

    def __init__(self, model: nn.Module, operation: str) -> None:
        tables = tables_in(model)
        shards: dict[Any, Shards] = {t.across.shards.group: t.across.shards for t in tables.values() if t.across}
        if len(shards) > 1 or (shards and any(table.per_rank for table in tables.values())):
            raise CheckpointError(
                "the tables of a checkpoint must be sharded over one process_group, or each rank must have its own "
                f"whole tables; these differ: {', '.join(map(repr, tables))}"
            )
        self.tables: dict[str, Table] = {name: table.table for name, table in tables.items()}
        self._shards, self._operation = next(iter(shards.values()), None), operation
        self.rank = 0 if self._shards is None else self._shards.rank
        self.routing = Routing(1) if self._shards is None else self._shards.routing

    @property
    def is_alone(self) -> bool:
        """Whether this process works without others."""
        return self._shards is None

    @property
    def plain_routing(self) -> dict[str, Any] | None:
        """The routing as the manifest has it; None for a process that works alone."""
        return None if self._shards is None else self.routing.as_plain()

    def all_of(self, local: Result) -> list[Result]:
        """The values of all ranks, in their order; ExchangeError if the ranks do not meet."""
        return [local] if self._shards is None else self._shards.of_all([local], self._operation)

    def agree_on(self, local: object) -> bool:
        """Whether all ranks, each of which must call this, have the same value."""
        values = self.all_of(local)
        return values.count(local) == len(values)

    def do(self, action: Callable[[], Result]) -> Result:
        """The result of an action of all ranks. If it fails on one, it raises on all: CheckpointError on the others."""
        return action() if self._shards is None else self._shards.do(action, self._operation, CheckpointError)
