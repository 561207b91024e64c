"""Gradients and parameters of every layout, dtype and shape."""

import copy

import pytest
import torch
from torch import nn

from optimizer_cases import (
    ALL,
    ALLOW_CREATE_GRAPH,
    LOW_PRECISION,
    assert_identical,
    backward,
    lookup_loss,
    make,
    parameter,
    parameters_of,
    separable_loss,
    snapshot,
    train,
    train_lookup,
)
from sparsegroup import GroupAdagrad, GroupAdaHessian, GroupAdam, GroupAMSGrad, GroupMomentum

pytestmark = ALLOW_CREATE_GRAPH

REGULARIZED = {"l1": 0.01, "l21": 0.02, "l2": 0.01}
ALL_ROWS_TWICE = [[3, 0, 1, 2, 4, 3, 0, 1, 2, 4]] * 4


@pytest.mark.parametrize("cls", ALL)
def test_sparse_gradients_of_all_rows_equal_dense_ones(cls):
    sparse, dense = parameter(5, 3), parameter(5, 3)
    train_lookup(make(cls, [sparse], **REGULARIZED), ALL_ROWS_TWICE)
    optimizer = make(cls, [dense], **REGULARIZED)
    for t, rows in enumerate(ALL_ROWS_TWICE):
        backward(optimizer, lookup_loss(dense, rows, t, sparse=False))
        optimizer.step()
    torch.testing.assert_close(sparse, dense, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("cls", ALL)
def test_an_uncoalesced_gradient_equals_its_coalesced_form(cls):
    table = parameter(5, 3)
    optimizer = make(cls, [table], **REGULARIZED)
    backward(optimizer, lookup_loss(table, [3, 1, 3, 3]))
    assert not table.grad.is_coalesced()
    optimizer.step()

    coalesced = parameter(5, 3)
    optimizer = make(cls, [coalesced], **REGULARIZED)
    backward(optimizer, lookup_loss(coalesced, [3, 1, 3, 3]))
    coalesced.grad = coalesced.grad.coalesce()
    optimizer.step()
    assert_identical(table, coalesced)


@pytest.mark.parametrize("cls", ALL)
def test_rows_that_a_sparse_gradient_does_not_hold_do_not_change(cls):
    table = parameter(5, 3)
    optimizer = make(cls, [table], **REGULARIZED)
    train_lookup(optimizer, [[0, 1, 2, 3, 4]] * 2)
    before = snapshot(optimizer)
    train_lookup(optimizer, [[1, 3, 1]], start=2)
    after = snapshot(optimizer)
    rest = [0, 2, 4]
    for name, value in after["state"][0].items():
        if name != "step":
            assert_identical(value[rest], before["state"][0][name][rest], name)
    assert_identical(after["params"][0][rest], before["params"][0][rest])
    assert not torch.equal(after["params"][0], before["params"][0])


@pytest.mark.parametrize("cls", ALL)
def test_a_sparse_gradient_without_entries_advances_the_step_and_nothing_else(cls):
    table = parameter(5, 3)
    optimizer = make(cls, [table], **REGULARIZED)
    train_lookup(optimizer, [[0, 1, 2]])
    before = snapshot(optimizer)
    train_lookup(optimizer, [[]], start=1)
    after = snapshot(optimizer)
    assert table.grad._nnz() == 0
    assert after["state"][0].pop("step") == 2
    del before["state"][0]["step"]
    assert_identical(after["state"], before["state"])
    assert_identical(after["params"], before["params"])


@pytest.mark.parametrize("shape", [(6,), (6, 2, 3)])
def test_sparse_gradients_of_any_dimension_have_a_hessian(shape):
    table, flat = parameter(*shape), nn.Parameter(parameter(*shape).detach().reshape(6, -1))
    for x in (table, flat):
        optimizer = GroupAdaHessian([x], lr=0.1, spatial_average_block_size=(1, 1, 1, 1), **REGULARIZED)
        for t, rows in enumerate([[0, 5], [2, 5]]):
            optimizer.zero_grad()
            g = (x + 0.5 * t)[rows]  # linked to x, so that the Hessian is 1
            x.grad = torch.sparse_coo_tensor(torch.tensor([rows]), g, x.shape, check_invariants=True)
            optimizer.step()
    torch.testing.assert_close(table.reshape(6, -1), flat, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("sparse", [False, True])
def test_state_and_arithmetic_are_float32_but_for_float64_parameters(cls, sparse):
    for dtype in (torch.float64, torch.float32, *LOW_PRECISION):
        x, expected = parameter(5, 3, dtype=dtype), parameter(5, 3, dtype=dtype).detach().double()
        optimizer = make(cls, [x], **REGULARIZED)
        exact = make(cls, [nn.Parameter(expected)], **REGULARIZED)
        for each in (optimizer, exact):
            if sparse:
                train_lookup(each, [[0, 1, 2, 3, 4]] * 3)
            else:
                train(each, 3)
        compute = torch.float64 if dtype == torch.float64 else torch.float32
        assert {v.dtype for name, v in optimizer.state[x].items() if name != "step"} == {compute}
        assert x.dtype == dtype
        torch.testing.assert_close(x.detach().double(), *parameters_of(exact), rtol=0, atol=16 * torch.finfo(dtype).eps)


def test_a_step_on_a_slice_leaves_the_rest_of_its_memory_alone():
    memory = torch.full((8, 6), 99.0)
    train(GroupAdam([nn.Parameter(memory[::2, 1:5])], lr=0.1, l21=0.01), 2)
    assert int((memory == 99).sum()) == 8 * 6 - 4 * 4
    assert (memory[::2, 1:5] != 99).all()


def test_sparse_gradients_update_a_transposed_table():
    table = nn.Parameter(parameter(5, 3).detach().t().contiguous().t())
    plain = parameter(5, 3)
    for x in (table, plain):
        train_lookup(GroupAdam([x], lr=0.1, **REGULARIZED), [[0, 4], [4, 2]])
    assert_identical(table, plain)


@pytest.mark.parametrize("cls", ALL)
def test_a_parameter_without_elements_takes_steps(cls):
    for shape in ((0,), (0, 3), (3, 0)):
        for groups in ("rows", "all", -1, torch.arange(shape[0])):
            x = parameter(*shape)
            optimizer = make(cls, [x], groups=groups, **REGULARIZED)
            train(optimizer, 2)
            assert optimizer.state[x]["step"] == 2


@pytest.mark.parametrize("cls", ALL)
def test_a_step_does_not_change_the_gradient(cls):
    dense, table = parameter(5, 3), parameter(5, 3)
    for x, options in ((dense, {"weight_decay": 0.1}), (table, {})):
        optimizer = make(cls, [x], maximize=True, **REGULARIZED, **options)
        backward(optimizer, lookup_loss(x, [1, 1, 4], sparse=x is table))
        before = copy.deepcopy(x.grad.detach())
        optimizer.step()
        assert_identical(x.grad, before)


@pytest.mark.parametrize("cls", ALL)
def test_parameters_without_gradient_are_skipped(cls):
    used, unused, frozen = parameter(2), parameter(2), parameter(2).requires_grad_(False)
    optimizer = make(cls, [used, unused, frozen], l21=0.1)
    train(make(cls, [parameter(2)], l21=0.1), 1)
    backward(optimizer, separable_loss(used))
    optimizer.step()
    assert list(optimizer.state) == [used]
    assert_identical([unused, frozen], [parameter(2), parameter(2)])
    optimizer.zero_grad()
    before = snapshot(optimizer)
    optimizer.step()
    assert_identical(snapshot(optimizer), before)


@pytest.mark.parametrize("cls", ALL)
def test_tied_parameters_take_one_step(cls):
    embedding, head = nn.Embedding(4, 3, dtype=torch.float64), nn.Linear(3, 4, bias=False, dtype=torch.float64)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, head)
    alone = nn.Parameter(embedding.weight.detach().clone())
    averaging = {"spatial_average_block_size": (1, 1, 1, 1)} if cls is GroupAdaHessian else {}
    generators = [{"generator": torch.Generator().manual_seed(1)} if averaging else {} for _ in range(2)]
    optimizer = make(cls, model.parameters(), l21=0.01, **averaging, **generators[0])
    by_hand = make(cls, [alone], l21=0.01, **averaging, **generators[1])
    for _ in range(3):
        backward(optimizer, model(torch.tensor([0, 2])).square().sum())
        backward(by_hand, (alone[[0, 2]] @ alone.t()).square().sum())
        optimizer.step()
        by_hand.step()
    assert len(optimizer.state) == 1
    torch.testing.assert_close(embedding.weight, alone, rtol=1e-12, atol=1e-12)
    assert head.weight is embedding.weight


@pytest.mark.parametrize("cls", ALL)
def test_maximize_is_minimizing_the_negative(cls):
    up, down = parameter(4, 3), parameter(4, 3)
    ascent, descent = (
        make(cls, [up], maximize=True, weight_decay=0.1, l21=0.02),
        make(cls, [down], weight_decay=0.1, l21=0.02),
    )
    for t in range(3):
        backward(ascent, separable_loss(up, t))
        backward(descent, -separable_loss(down, t))
        ascent.step()
        descent.step()
    assert_identical(up, down)


@pytest.mark.parametrize(
    ("cls", "theirs", "options"),
    [
        (GroupMomentum, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        (GroupMomentum, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True, "maximize": True}),
        (GroupAdagrad, torch.optim.Adagrad, {"weight_decay": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.2}),
        (GroupAdam, torch.optim.Adam, {"weight_decay": 0.1, "maximize": True, "betas": (0.5, 0.9), "eps": 0.01}),
        (GroupAMSGrad, lambda p, **o: torch.optim.Adam(p, amsgrad=True, **o), {"weight_decay": 0.1}),
    ],
)
def test_torchs_other_arguments_mean_the_same(cls, theirs, options):
    ours, reference = parameter(4, 3), parameter(4, 3)
    train(cls([ours], lr=0.1, **options), 20)
    train(theirs([reference], lr=0.1, **options), 20)
    torch.testing.assert_close(ours, reference, rtol=1e-12, atol=1e-13)
