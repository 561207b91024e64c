"""The ranks that write or read one checkpoint together."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

from sparsegroup.checkpoint.checkpoint_error import CheckpointError
from sparsegroup.table.field_tables import tables_in
from sparsegroup.table.sharded.exchange import Shards
from sparsegroup.table.sharded.routing import Routing

Result = TypeVar("Result")


class CheckpointRanks:
    """The ranks that a model's tables lie on; a single one where the tables are on one process.

    Args:
        shards: The ranks.
        doing: What they do, in messages of `ExchangeError`: "writing a checkpoint".

    Attributes:
        doing: As above.
        rank: The number of this one.
        routing: Which of them has which key.
    """

    def __init__(self, shards: Shards | None, doing: str) -> None:
        self._shards, self.doing = shards, doing
        self.rank = 0 if shards is None else shards.rank
        self.routing = Routing(1) if shards is None else shards.routing

    @classmethod
    def of(cls, model: nn.Module, doing: str) -> "CheckpointRanks":
        """Those of the tables of a model.

        Raises:
            CheckpointError: Some tables lie on other ranks than others.
        """
        tables = tables_in(model)
        found: Mapping[str, Any] = {name: table.across.shards for name, table in tables.items() if table.across}
        groups = {shards.group for shards in found.values()}
        if len(groups) > 1 or (found and any(table.per_rank for table in tables.values())):
            raise CheckpointError(
                "the tables of a checkpoint lie on the ranks of one process_group, or each rank has all of its own; "
                f"these differ: {', '.join(map(repr, tables))}"
            )
        return cls(next(iter(found.values()), None), doing)

    @property
    def is_alone(self) -> bool:
        """Whether there are no others."""
        return self._shards is None

    @property
    def buckets(self) -> range:
        """The logical buckets of this rank."""
        return self.routing.range_of(self.rank)

    @property
    def plain_routing(self) -> dict[str, Any] | None:
        """What a checkpoint says of which rank has which key; None of a single rank."""
        return None if self._shards is None else self.routing.as_plain()

    def all_of(self, own: Result) -> list[Result]:
        """What all ranks have, in their order.

        Raises:
            ExchangeError: The ranks do not meet.
        """
        return [own] if self._shards is None else self._shards.of_all([own], self.doing)

    def agree_on(self, own: object) -> bool:
        """Whether all ranks have the same value. All of them have to ask.

        Raises:
            ExchangeError: The ranks do not meet.
        """
        values = self.all_of(own)
        return values.count(own) == len(values)

    def do(self, action: Callable[[], Result]) -> Result:
        """What an action gives, which all ranks carry out.

        Raises:
            CheckpointError: It has failed on another rank.
            ExchangeError: The ranks do not meet.
            Exception: What it has raised on this one.
        """
        if self._shards is None:
            return action()
        return self._shards.do(action, self.doing, CheckpointError)
