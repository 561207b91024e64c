"""Gradients and parameters of every layout, dtype and shape."""

import copy

import torch
from torch import nn

from optimizer_cases import (
    ALL,
    ALLOW_CREATE_GRAPH,
    KINDS,
    assert_identical,
    backward,
    lookup_loss,
    make,
    parameter,
    separable_loss,
    snapshot,
    train,
    train_lookup,
)
from over import over
from sparsegroup import GroupAdaHessian, GroupAdam

pytestmark = ALLOW_CREATE_GRAPH

REGULARIZED = {"l1": 0.01, "l21": 0.02, "l2": 0.01}


@over("shape", [(6,), (6, 2, 3)])
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


@over("cls", KINDS)
def test_a_step_does_not_change_the_gradient(cls):
    dense, table = parameter(5, 3), parameter(5, 3)
    for x, options in ((dense, {"weight_decay": 0.1}), (table, {})):
        optimizer = make(cls, [x], maximize=True, **REGULARIZED, **options)
        backward(optimizer, lookup_loss(x, [1, 1, 4], sparse=x is table))
        before = copy.deepcopy(x.grad.detach())
        optimizer.step()
        assert_identical(x.grad, before)


@over("cls", ALL)
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


@over("cls", KINDS)
def test_tied_parameters_take_one_step(cls):
    embedding, head = nn.Embedding(4, 3, dtype=torch.float64), nn.Linear(3, 4, bias=False, dtype=torch.float64)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, head)
    alone = nn.Parameter(embedding.weight.detach().clone())
    seeds = [torch.Generator().manual_seed(1) for _ in range(2)]
    options = [{"generator": seed} if cls is GroupAdaHessian else {} for seed in seeds]
    optimizer = make(cls, model.parameters(), l21=0.01, **options[0])
    by_hand = make(cls, [alone], l21=0.01, **options[1])
    for _ in range(3):
        backward(optimizer, model(torch.tensor([0, 2])).square().sum())
        backward(by_hand, (alone[[0, 2]] @ alone.t()).square().sum())
        optimizer.step()
        by_hand.step()
    assert len(optimizer.state) == 1
    torch.testing.assert_close(embedding.weight, alone, rtol=1e-12, atol=1e-12)
    assert head.weight is embedding.weight
