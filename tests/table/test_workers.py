"""Workers of a DataLoader have copies of a table: they may look keys up, and insert none, however they were started."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sparsegroup import HashEmbedding

pytestmark = pytest.mark.whole


class Vectors(Dataset[Tensor]):
    """Gives the vector of each key, or what was said instead."""

    def __init__(self, table: HashEmbedding) -> None:
        self.table = table

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        try:
            return self.table(torch.tensor([index])).detach()
        except RuntimeError as error:
            return str(error)


def said(table: HashEmbedding, start: str) -> list[Any]:
    loader = DataLoader(Vectors(table), batch_size=None, num_workers=1, multiprocessing_context=start, timeout=120)
    return list(loader)


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_a_worker_inserts_nothing_and_says_what_to_do(start: str) -> None:
    torch.set_num_threads(1)
    table = HashEmbedding(3)
    for message in said(table, start):
        assert message.startswith("worker 0 of a DataLoader cannot insert keys: its table is a copy")
        assert "Have the workers give the keys, and look them up in the main process" in message
    assert table.num_rows == 0


@pytest.mark.parametrize("prepare", ["eval", "freeze"])
def test_a_worker_may_look_up_what_there_is(prepare: str) -> None:
    table = HashEmbedding(3)
    table.assign(torch.tensor([1]), torch.ones(1, 3))
    table = table.eval() if prepare == "eval" else table.requires_grad_(False)
    assert [vector.tolist() for vector in said(table, "fork")] == [[[one] * 3] for one in (0.0, 1.0, 0.0, 0.0)]


def test_where_there_are_no_workers_a_data_set_may_insert() -> None:
    table = HashEmbedding(3)
    loader = DataLoader(Vectors(table), batch_size=None)
    assert len(list(loader)) == 4
    assert table.num_rows == 4
