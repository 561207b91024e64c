"""What a trainer is given must be trainable: optimizers have the parameters, labels are 0 or 1."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from over import over
from sparsegroup import FieldTables, GroupAdam, HashEmbedding
from sparsegroup.models import MLP
from sparsegroup.training import ClickModel, Trainer

KEYS = torch.arange(12).view(4, 3)
LABELS = torch.tensor([0, 1, 1, 0])


def parts() -> tuple[MLP, HashEmbedding]:
    torch.manual_seed(0)
    return MLP(fields=3, dim=2, hidden=(4,)), HashEmbedding(2)


def made() -> Trainer:
    model, table = parts()
    return Trainer(table, model, GroupAdam([*table.parameters(), *model.parameters()]))


def test_a_network_in_the_tables_place_is_an_error_that_gives_the_order() -> None:
    model, table = parts()
    with pytest.raises(TypeError, match=r"got MLP: the order is Trainer\(table, network, optimizer\)"):
        Trainer(model, table, GroupAdam(model.parameters()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got MLP: the order is ClickModel\(table, network\)"):
        ClickModel(model, table)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim\.Optimizer, such as GroupAdam, got 'adam'"):
        Trainer(table, model, "adam")  # type: ignore[arg-type]


def test_parameters_that_no_optimizer_has_are_an_error_or_a_warning_unless_frozen() -> None:
    model, table = parts()
    with pytest.raises(ValueError, match=r"no optimizer has table\.weight, so that it would never be trained"):
        Trainer(table, model, GroupAdam(model.parameters()))
    with pytest.raises(ValueError, match=r"give its module's parameters\(\) to one"):
        Trainer(table, model, torch.optim.Adam(model.parameters()))
    tables = FieldTables(2, {0: 2, 1: 1})
    with pytest.raises(ValueError, match=r"no optimizer has table\.dim_1\.weight, so"):
        Trainer(tables, model, GroupAdam([*model.parameters(), *tables.tables["dim_2"].parameters()]))
    with pytest.warns(UserWarning, match=r"no optimizer has network\.\S+, .* these stay as they are") as warned:
        Trainer(table, model, GroupAdam(table.parameters()))
    assert warned[0].filename == __file__
    with_fallback = HashEmbedding(2, fallback=True)
    with pytest.warns(UserWarning, match=r"no optimizer has table\.fallback: these stay as they are"):
        Trainer(with_fallback, model, GroupAdam([with_fallback.weight, *model.parameters()]))
    Trainer(table, model, [GroupAdam(table.parameters()), torch.optim.Adam(model.parameters())])
    Trainer(table.requires_grad_(False), model, GroupAdam(model.parameters()))
    model, table = parts()
    Trainer(table, model.requires_grad_(False), GroupAdam(table.parameters()))


@pytest.mark.parametrize(
    ("sample", "error", "message"),
    [
        ((np.zeros((4, 3), np.int64), np.zeros(4)), TypeError, r"numbers, labels\), got \['ndarray', 'ndarray'\]"),
        ({"keys": torch.zeros(4, 3)}, TypeError, r"got \['dict'\]"),
        ((KEYS,), TypeError, r"a batch is a Batch, \(keys, labels\) or \(keys, numbers, labels\), got 1 parts"),
        ((torch.zeros(4, 3), torch.zeros(4), torch.ones(4)), ValueError, r"must be \[batch, numbers\], got \[4\]"),
    ],
)
def test_a_batch_of_another_kind_is_named(sample: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made().fit([sample])


@over("use", [Trainer.fit, Trainer.evaluate])
@over("value", ["2", "-1", "nan", "inf", "0.5"])
def test_labels_other_than_0_and_1_are_named_with_their_place(value: str, use: Callable[..., object]) -> None:
    trainer = made()
    before = copy.deepcopy(trainer.network.state_dict())
    wrong = torch.tensor([0, 1, float(value), 0])
    wrong = wrong if wrong[2] != wrong[2].round() or wrong[2].isinf() else wrong.long()
    message = rf"labels must be 0 or 1, got {value} in row 2 of batch 1 of the stream"
    with pytest.raises(ValueError, match=message):
        use(trainer, [(KEYS, LABELS), (KEYS + 100, wrong)])
    assert not trainer.table.contains(KEYS + 100).any()
    for name, tensor in trainer.network.state_dict().items():
        assert torch.equal(tensor, before[name]), "nothing was trained with the batch before it"


def test_0_and_1_may_have_any_dtype_and_a_prediction_needs_no_labels() -> None:
    trainer = made()
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float64):
        trainer.fit([(KEYS, LABELS.to(dtype))])
    assert trainer.samples == 16
    assert np.isfinite(trainer.predict([(KEYS, torch.full((4,), float("nan")))])).all()


def test_the_clock_stops_where_training_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def stream(broken: bool) -> Iterator[tuple[Tensor, Tensor]]:
        nonlocal now
        for _ in range(3):
            now += 1.0
            yield KEYS, LABELS
        if broken:
            raise OSError("the disk is gone")

    monkeypatch.setattr("sparsegroup.training.state.perf_counter", lambda: now)
    trainer = made()
    with pytest.raises(OSError, match="the disk is gone"):
        trainer.fit(stream(broken=True))
    spent = trainer.seconds
    assert spent > 0
    now += 100.0
    assert trainer.seconds == spent
    trainer.fit(stream(broken=False))
    assert trainer.seconds == 2 * spent
