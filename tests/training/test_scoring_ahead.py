"""Scoring a stream while the next batch's keys are looked for: what a model gives, batch by batch, in every bit."""

from collections.abc import Iterator

import pytest
import torch

from over import over
from plain_settings import plain
from sparsegroup.data import MemoryLog, SyntheticConfig, synthetic_log
from sparsegroup.data.batches import Batch
from sparsegroup.kernels.cpu.threads import set_num_threads
from sparsegroup.serving.frozen import FrozenTable, live_rows
from sparsegroup.serving.frozen_model import frozen_copy
from sparsegroup.table import HashEmbedding
from sparsegroup.table.field_tables import tables_in
from sparsegroup.training.model import ClickModel
from sparsegroup.training.predictions import logits_over

ROWS, SIZE = 9_000, 2_100


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    set_num_threads(2)
    yield
    set_num_threads(None)


def log() -> MemoryLog:
    return synthetic_log(SyntheticConfig(rows=ROWS, cardinalities=(10, 100, 2_000)), seed=4)


def batches() -> list[Batch]:
    return list(log().batches(0, ROWS, SIZE))


@pytest.fixture
def model() -> ClickModel:
    """One that knows the features of the first batches alone."""
    built, _ = plain(dim=4, hidden=[8], seed=1).build(log())
    for batch in batches()[:2]:
        built(batch.keys, batch.numbers, batch.bags)
    return built.eval()


@over("exported", [False, True])
def test_logits_are_those_of_the_model(model: ClickModel, exported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead: list[int] = []
    kind = FrozenTable if exported else HashEmbedding
    own = kind.prefetch
    monkeypatch.setattr(kind, "prefetch", lambda table, keys: ahead.append(len(keys)) or own(table, keys))
    if exported:
        rows = {name: live_rows(table, "int8") for name, table in tables_in(model).items()}
        model = frozen_copy(model, rows)
    with torch.no_grad():
        expected = [model(batch.keys, batch.numbers, batch.bags) for batch in batches()]
    found = list(logits_over(model, batches()))
    assert all(torch.equal(logits, one) for (_, logits), one in zip(found, expected, strict=True))
    assert len(ahead) == len(expected) - 1


def test_nothing_stays_on_a_model_whose_scoring_was_given_up(model: ClickModel) -> None:
    scoring = logits_over(model, batches())
    next(scoring)
    scoring.close()
    assert not model.embedding._forward_hooks
