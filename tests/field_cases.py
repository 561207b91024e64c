"""What the tests of λ21 by field share: keys with fields, and a table for each class of fields beside one for all."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from family import Member
from optimizer_cases import backward
from sparsegroup import GroupOptimizer, HashEmbedding

BITS = 8
FIELDS = 5


def keyed(field: Tensor | int, value: Tensor) -> Tensor:
    """Keys of values in a field, as the library makes them; fields above 127 are negative."""
    return (torch.as_tensor(field) << (64 - BITS)) | value


def field_of(keys: Tensor) -> Tensor:
    return (keys >> (64 - BITS)) & ((1 << BITS) - 1)


def drawn_keys(step: int, count: int = 64, spread: int = 400) -> Tensor:
    """A few values that come often and many that come once, in five fields; field 4 has but ten values."""
    generator = torch.Generator().manual_seed(step)
    values = (torch.randn(count, generator=generator).square() * spread).long()
    fields = torch.randint(FIELDS, (count,), generator=generator)
    return keyed(fields, torch.where(fields == 4, values % 10, values))


class Apart:
    """One table with a λ21 for each of some fields, and a table for each of these fields and all others.

    Args:
        member: The optimizer.
        dim: The tables'.
        l21: λ21 of the other fields.
        by_field: Field → λ21.
        options: The optimizer's.
    """

    def __init__(self, member: Member, dim: int, l21: float, by_field: Mapping[int, float], **options: Any) -> None:
        self.named = tuple(by_field)
        self.shared = HashEmbedding(dim, std=0.1, field_bits=BITS)
        self.own = [HashEmbedding(dim, std=0.1, field_bits=BITS) for _ in (None, *by_field)]
        self.optimizer = member.build(self.shared.weight, l21=l21, **options)
        self.optimizer.param_groups[0]["field_l21"] = dict(by_field)
        lambdas = [l21, *by_field.values()]
        self.optimizers = [
            member.build(table.weight, l21=one, **options) for table, one in zip(self.own, lambdas, strict=True)
        ]

    def set_l21(self, l21: float, by_field: Mapping[int, float]) -> None:
        self.optimizer.param_groups[0].update(l21=l21, field_l21=dict(by_field))
        for optimizer, one in zip(self.optimizers, [l21, *by_field.values()], strict=True):
            optimizer.param_groups[0]["l21"] = one

    def place(self, keys: Tensor) -> Tensor:
        """Which of the tables each key is in."""
        place = torch.zeros_like(keys)
        for number, field in enumerate(self.named, 1):
            place[field_of(keys) == field] = number
        return place

    def step(self, keys: Tensor, gradient: Tensor) -> None:
        """One step of all on the same gradients; the diagonal of the Hessian is 1."""
        learn(self.shared, self.optimizer, [(keys, gradient)])
        for number, (table, optimizer) in enumerate(zip(self.own, self.optimizers, strict=True)):
            mine = self.place(keys) == number
            if mine.any():
                learn(table, optimizer, [(keys[mine], gradient[mine])])

    def sweep(self) -> None:
        for optimizer in (self.optimizer, *self.optimizers):
            optimizer.sweep(drop_untrained=True)


def learn(table: HashEmbedding, optimizer: GroupOptimizer, lookups: Sequence[tuple[Tensor, Tensor]]) -> None:
    """One step on the sum of some lookups, each with its gradient."""
    loss = torch.zeros(())
    for keys, gradient in lookups:
        vectors = table(keys)
        moved = vectors - vectors.detach()
        loss = loss + (gradient * moved + moved * moved / 2).sum()
    backward(optimizer, loss)
    optimizer.step()
