"""Fields of several values: a batch's bags against a plain reading of the log, however the rows are cut."""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from data_cases import written
from over import over
from sparsegroup.data import PreparedLog, RawLog, open_log, preparation, prepare
from sparsegroup.data.batches import Bags, Batch, rebatched
from sparsegroup.data.keys import keys_of
from sparsegroup.data.schema import LogFormat

Lists = list[list[int]]


def random_lists(rows: int, seed: int) -> Lists:
    generator = random.Random(seed)
    return [[generator.randrange(1 << 62) for _ in range(generator.choice([0, 0, 1, 2, 7]))] for _ in range(rows)]


def bags_of(lists: Lists) -> Bags:
    flat = [key for keys in lists for key in keys]
    ends = torch.tensor([0, *map(len, lists)]).cumsum(0)
    return Bags(torch.tensor(flat, dtype=torch.int64), ends)


def lists_of(bags: Bags) -> Lists:
    assert bags.offsets[0] == 0
    assert bags.offsets[-1] == len(bags.keys)
    return [bags.keys[a:b].tolist() for a, b in zip(bags.offsets[:-1], bags.offsets[1:], strict=True)]


def batch_of_lists(columns: Sequence[Lists], weights: Tensor | None = None) -> Batch:
    rows = torch.arange(len(columns[0]))
    bags = tuple(map(bags_of, columns))
    return Batch(rows[:, None], rows[:, None].float(), rows.float(), rows, weights, bags)


def test_a_slice_of_bags_is_the_bags_of_the_slice() -> None:
    lists = random_lists(40, seed=0)
    bags = bags_of(lists)
    assert lists_of(bags) == lists
    for start in (None, 0, 1, 13, 39, 40, 50, -3):
        for stop in (None, 0, 1, 14, 40, 99, -1):
            part = bags[start:stop]
            assert lists_of(part) == lists[start:stop]
            assert lists_of(part[1:3]) == lists[start:stop][1:3]


@over("seed", range(5))
def test_rows_cut_anywhere_and_put_together_at_any_size_are_the_same_rows(seed: int) -> None:
    generator = random.Random(seed)
    columns: list[Lists] = [random_lists(60, seed), [[]] * 60, random_lists(60, seed + 100)]
    whole = batch_of_lists(columns, torch.rand(60, generator=torch.Generator().manual_seed(seed)))
    borders = [0, *sorted(generator.randrange(61) for _ in range(generator.randrange(9))), 60]
    parts = [whole[a:b] for a, b in pairwise(borders)]
    for size in (1, 7, 59, 60, 100):
        batches = list(rebatched(iter(parts), size))
        assert [len(batch) for batch in batches] == [size] * (60 // size) + [60 % size] * (60 % size > 0)
        for number, column in enumerate(columns):
            assert [keys for batch in batches for keys in lists_of(batch.bags[number])] == column
        assert whole.weights is not None
        for name in ("labels", "times", "weights"):
            assert torch.equal(torch.cat([getattr(batch, name) for batch in batches]), getattr(whole, name))


def test_a_logs_bags_are_those_of_a_plain_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "PART_CHUNKS", 2)
    generator = random.Random(3)
    words = ["", "a", "日本", "b c", "d"]
    rows = [
        ["|".join(generator.choices(words, k=generator.randrange(5))), generator.choice(words), generator.choice(words)]
        for _ in range(90)
    ]
    rows = [[tags, word, "&".join([more] * (i % 4))] for i, (tags, word, more) in enumerate(rows)]
    lines = ["label,tags,word,more"] + [f"{i % 2},{','.join(row)}" for i, row in enumerate(rows)]
    path = written(tmp_path / "log.csv", "\n".join(lines))
    # The bags come in the order of the lists, which need not be that of the fields.
    log_format = LogFormat("log", "label", ("tags", "word", "more"), lists={"more": "&", "tags": "|"})
    # What is empty or missing is one value, the empty string.
    expected = {
        name: [keys_of(row[field].split(separator), field).tolist() for row in rows]
        for field, name, separator in ((0, "tags", "|"), (2, "more", "&"))
    }
    prepared, _ = prepare([path], tmp_path / "out", log_format, chunk_bytes=300)
    logs: list[PreparedLog | RawLog] = [prepared, open_log(path, format=log_format, chunk_bytes=300)]
    for log in logs:
        assert (log.fields, log.lists) == (("tags", "word", "more"), ("more", "tags"))
        for start, stop, size in ((0, 90, 7), (0, 90, 90), (31, 77, 20)):
            batches = list(log.batches(start, stop, size))
            for number, name in enumerate(log.lists):
                assert [keys for b in batches for keys in lists_of(b.bags[number])] == expected[name][start:stop]
            single = torch.cat([batch.keys for batch in batches])
            assert single.tolist() == keys_of([row[1] for row in rows[start:stop]], 1)[:, None].tolist()
            assert all(bags.keys.dtype == bags.offsets.dtype == torch.int64 for bags in batches[0].bags)
    with pytest.raises(ValueError, match="lists must be fields, got 'b', which is none"):
        LogFormat("log", "label", ("a",), lists={"b": "|"})
