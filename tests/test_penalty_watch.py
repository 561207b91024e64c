"""A penalty on a whole dense weight touches every row: that is said once, before anything is changed."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

from optimizer_cases import assert_identical
from sparsegroup import GroupAdam, GroupMomentum, HashEmbedding

ROWS = 500
BATCH = torch.tensor([0, 3, 3, 400])

PENALTIES = {
    "squares": (lambda x: 1e-5 * x.square().sum(), "2e-05 times the weights"),
    "tiny": (lambda x: 1e-12 * x.square().sum(), "2e-12 times the weights"),
    "absolute values": (lambda x: 1e-3 * x.abs().sum(), "0.001 times their signs"),
    "norm": (lambda x: x.norm(), "times the weights"),
}


def new_embedding(dim: int = 4, dtype: torch.dtype = torch.float32, **options: object) -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(ROWS, dim, dtype=dtype, **options)


def loss_of(module: nn.Module, keys: Tensor = BATCH) -> Tensor:
    return (module(keys) * torch.linspace(1, 2, 4)[:, None]).sum()


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize(("dim", "dtype"), [(4, torch.float32), (1, torch.float64), (8, torch.bfloat16)])
def test_a_penalty_on_the_whole_weight_is_told_once(penalty, dim, dtype):
    added, words = PENALTIES[penalty]
    module = new_embedding(dim, dtype)
    optimizer = GroupAdam(module.named_parameters(), l21=1e-3)
    with pytest.warns(RuntimeWarning, match=words if dtype != torch.bfloat16 else "times") as caught:
        step(optimizer, loss_of(module) + added(module.weight))
    (warning,) = caught
    assert "(param group 0, weight)" in str(warning.message)
    assert "give the optimizer l2 instead" in str(warning.message)
    assert warning.filename == __file__
    step(optimizer, loss_of(module) + added(module.weight))


def test_why_rows_that_no_batch_holds_become_zero_by_it_and_not_by_l2():
    def rows_left(penalty: float, l2: float) -> int:
        module = new_embedding()
        optimizer = GroupAdam([module.weight], l21=1e-3, l2=l2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step(optimizer, loss_of(module) + penalty * module.weight.square().sum())
        return int((module.weight != 0).any(1).sum())

    assert rows_left(penalty=0.0, l2=1e-5) == ROWS
    assert rows_left(penalty=1e-12, l2=0.0) == len(BATCH.unique())


def test_weight_decay_is_named_if_it_is_that():
    module = new_embedding()
    optimizer = GroupAdam([module.weight], l21=1e-3, weight_decay=0.5)
    with pytest.warns(RuntimeWarning, match=r"0.5 times.*weight_decay=0.5 updates every row.* Make weight_decay=0"):
        step(optimizer, loss_of(module))


def test_it_is_told_when_l21_is_turned_on_and_for_several_parameters_at_once():
    modules = [new_embedding() for _ in range(3)]
    optimizer = GroupAdam([module.weight for module in modules])
    loss = lambda: sum(loss_of(module) + module.weight.square().sum() for module in modules)  # noqa: E731
    step(optimizer, loss())
    optimizer.param_groups[0]["l21"] = 1e-3
    with pytest.warns(RuntimeWarning, match=r"\(param group 0, parameter 0, and so for 2 more parameters\)") as caught:
        step(optimizer, loss())
    assert len(caught) == 1


def test_where_warnings_are_errors_nothing_has_been_changed():
    first, second = nn.Linear(2, 2), new_embedding()
    optimizer = GroupAdam([{"params": first.parameters()}, {"params": second.parameters(), "l21": 1e-3}])
    before = copy.deepcopy([first.state_dict(), second.state_dict()])
    with pytest.raises(RuntimeWarning, match="updates every row"):
        step(optimizer, first(torch.ones(2)).sum() + second.weight.square().sum())
    assert_identical([first.state_dict(), second.state_dict()], before)
    assert not optimizer.state


def whole_softmax(module: nn.Module) -> Tensor:
    return torch.logsumexp(module.weight @ torch.linspace(-1, 1, 4), 0)


NOT_PENALTIES = {
    "a batch": lambda module: loss_of(module),
    "all rows, in a softmax": whole_softmax,
    "a penalty on the batch's rows": lambda module: module(BATCH).square().sum(),
    "nothing": lambda module: 0 * module.weight.sum(),
}


@pytest.mark.parametrize("case", NOT_PENALTIES)
def test_other_gradients_are_not_remarked_upon(case):
    module = new_embedding()
    step(GroupMomentum(module.parameters(), l21=1e-3), NOT_PENALTIES[case](module))


@pytest.mark.parametrize("options", [{}, {"l2": 0.1}, {"l21": 1e-3, "groups": "columns"}], ids=str)
def test_it_is_not_remarked_upon_where_no_row_vanishes_by_it(options):
    module = new_embedding()
    step(GroupMomentum(module.parameters(), **options), loss_of(module) + module.weight.square().sum())


def test_sparse_gradients_and_tables_are_not_looked_at():
    for module in (new_embedding(sparse=True), HashEmbedding(4)):
        step(GroupMomentum(module.parameters(), l21=1e-3), module(torch.arange(300)).square().sum())
