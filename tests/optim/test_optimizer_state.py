"""State: saving, loading, resuming, copying; states of torch.optim; what is refused."""

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, SparseAdam

from optimizer_cases import (
    ALLOW_CREATE_GRAPH,
    KINDS,
    assert_identical,
    backward,
    make,
    parameter,
    refused,
    snapshot,
    train,
    train_lookup,
    wave,
)
from over import over
from sparsegroup import (
    GroupAdagrad,
    GroupAdaHessian,
    GroupAdam,
    GroupAMSGrad,
    GroupMomentum,
    GroupSGD,
    HashEmbedding,
    convert,
    param_groups,
)
from table_cases import through_a_file

pytestmark = ALLOW_CREATE_GRAPH
REGULARIZED = {"l1": 0.01, "l21": 0.02, "l2": 0.01}
BATCHES = [[0, 1, 1], [4, 2], [0, 4], [], [3, 0], [1, 2, 3], [2], [0, 1, 2, 3, 4]]


@over("cls", KINDS)
@over(("dtype", "sparse"), [(torch.float64, False), (torch.bfloat16, True), (torch.float16, False)])
def test_resuming_from_a_file_equals_not_stopping(cls, dtype, sparse):
    # A lookup of nothing has no graph to differentiate twice.
    batches = [rows for rows in BATCHES if rows or cls is not GroupAdaHessian]

    def go(optimizer, start, stop):
        if sparse:
            train_lookup(optimizer, batches[start:stop], start)
        else:
            train(optimizer, stop - start, start)

    x = parameter(5, 3, dtype=dtype)
    groups = "rows" if sparse else torch.tensor([1, 0, 1, 2, 2])
    whole = make(cls, [x], lr=torch.tensor(0.25), groups=groups, norm="metric", **REGULARIZED)
    go(whole, 0, 4)
    weights, state = through_a_file({"x": x.detach()})["x"], through_a_file(whole.state_dict())
    go(whole, 4, 7)

    y = nn.Parameter(weights)
    resumed = make(cls, [y])  # the hyperparameters come with the state
    resumed.load_state_dict(state)
    assert_identical(snapshot(resumed)["groups"], snapshot(whole)["groups"])
    go(resumed, 4, 7)
    assert_identical(x, y)
    assert_identical(whole.state[x], resumed.state[y])


@over("cls", KINDS)
@over(
    ("source", "target", "computed"),
    [
        (torch.float64, torch.float32, torch.float32),
        (torch.bfloat16, torch.float64, torch.float64),
        (torch.float32, torch.float16, torch.float32),
    ],
)
def test_loaded_state_has_the_compute_dtype_and_the_layout_of_the_parameter_and_separate_memory(
    cls, source, target, computed
):
    x, y = parameter(2, 3, 2, 2, dtype=source), parameter(2, 3, 2, 2, dtype=target)
    y = nn.Parameter(y.detach().contiguous(memory_format=torch.channels_last))
    optimizer, other = make(cls, [x], **REGULARIZED), make(cls, [y], **REGULARIZED)
    train(optimizer, 2)
    other.load_state_dict(optimizer.state_dict())
    for name, value in optimizer.state[x].items():
        assert_identical(other.state[y][name], value if name == "step" else value.to(computed), name)
        assert name == "step" or other.state[y][name].stride() == y.stride()
    before = snapshot(optimizer)
    train(other, 1, start=2)
    assert y.isfinite().all()
    assert_identical(snapshot(optimizer), before)


@over("cls", KINDS)
@over("copy_of", [copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))])
def test_a_copy_with_its_parameters_trains_on_alike(cls, copy_of):
    generator = {"generator": torch.Generator().manual_seed(3)} if cls is GroupAdaHessian else {}
    x = parameter(4, 3)
    optimizer = make(cls, [x], **REGULARIZED, **generator)

    def go(x, optimizer):  # not separable: AdaHessian's generator must have been copied in its state
        for _ in range(2):
            backward(optimizer, (x @ x.t()).square().sum() / 50)
            optimizer.step()

    go(x, optimizer)
    y, twin = copy_of((x, optimizer))
    go(x, optimizer)
    go(y, twin)
    assert type(twin) is cls
    assert_identical(x, y)
    assert_identical(snapshot(optimizer)["state"], snapshot(twin)["state"])
    with refused(twin, ValueError, "l21"):
        twin.add_param_group({"params": [parameter(2)], "l21": -1.0})


def test_what_a_state_lacks_or_has_in_addition():
    """Names of parameters, the state of one without steps, and what is of no parameter, as in torch."""
    model = nn.Linear(2, 2)
    named, unnamed = GroupAdam(model.named_parameters(), l21=0.1), GroupAdam(model.parameters(), l21=0.1)
    model.weight.square().sum().backward()
    unnamed.step()
    state = unnamed.state_dict()
    state["state"]["of the whole"] = 3
    named.load_state_dict(state)
    assert named.param_groups[0]["param_names"] == ["weight", "bias"]
    assert list(named.state) == [model.weight, "of the whole"]


# States of torch.optim

SAME = [
    (GroupAdam, Adam),
    (GroupAdam, partial(Adam, fused=True)),
    (GroupAdam, partial(Adam, foreach=True)),
    (GroupAdam, partial(Adam, betas=(0.5, 0.9), eps=0.1, weight_decay=0.1, maximize=True)),
    (GroupAMSGrad, partial(Adam, amsgrad=True)),
    (GroupMomentum, partial(SGD, momentum=0.8, nesterov=True, foreach=True)),
    (GroupMomentum, SGD),
    (GroupAdagrad, partial(Adagrad, lr_decay=0.1, initial_accumulator_value=0.2)),
]


def trained(factory: Any, steps: int = 3) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    x = parameter(4, 3)
    optimizer = factory([x], lr=0.1)
    train(optimizer, steps)
    return x, optimizer


@over(("cls", "theirs"), SAME)
@over("flags", [{}, {"capturable": True, "differentiable": True}])
def test_training_continues_from_a_torch_state(cls, theirs, flags):
    """With u = 0 and all λ = 0 the next steps are torch's."""
    x, reference = trained(theirs)
    state = copy.deepcopy(reference.state_dict())
    for group in state["param_groups"]:  # torch's own step refuses these on a CPU, a state from a GPU has them
        group.update({name: value for name, value in flags.items() if name in group})
    y = nn.Parameter(x.detach().clone())
    ours = cls([y])
    arguments = ours.param_groups[0].keys()
    ours.load_state_dict(state)
    assert "u" not in ours.state[y]
    assert ours.param_groups[0].keys() == arguments
    train(ours, 3, start=3)
    train(reference, 3, start=3)
    torch.testing.assert_close(y, x, rtol=1e-13, atol=1e-13)


def test_a_sparse_adam_state_with_its_int_step_loads_and_our_regularizer_stays():
    x = parameter(4, 3)
    reference = SparseAdam([x], lr=0.1)
    x.grad = parameter(4, 3, seed=1).detach().to_sparse(1)
    reference.step()
    y = nn.Parameter(x.detach().clone())
    ours = GroupAdam([y], lr=0.3, l21=0.25, groups=0)
    ours.load_state_dict(reference.state_dict())
    (group,) = ours.param_groups
    assert (group["l21"], group["groups"], group["lr"]) == (0.25, 0, 0.1)
    y.grad = x.grad
    ours.step()
    assert ours.state[y]["step"] == 2
    assert ours.state[y]["u"].abs().max() > 0


@over(("cls", "theirs"), SAME)
def test_torch_continues_from_our_state(cls, theirs):
    """Regularized until then: from the same weights and moments, the next steps are torch's."""
    _, reference = trained(theirs)
    x = parameter(4, 3)
    ours = cls([x])
    ours.load_state_dict(reference.state_dict())
    ours.param_groups[0].update(REGULARIZED)
    train(ours, 3, start=3)
    ours.param_groups[0].update(dict.fromkeys(REGULARIZED, 0.0))
    y, z = nn.Parameter(x.detach().clone()), nn.Parameter(x.detach().clone())
    back, again = theirs([y], lr=1.0), cls([z])
    back.load_state_dict(copy.deepcopy(ours.state_dict()))
    again.load_state_dict(back.state_dict())
    for entry in again.state.values():
        del entry["u"]
    train(back, 3, start=6)
    train(again, 3, start=6)
    torch.testing.assert_close(y, z, rtol=1e-13, atol=1e-13)


def lookups(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for t in steps:
        optimizer.zero_grad()
        (model(torch.tensor([1, 2 + t % 3, 5])) * wave(torch.empty(3, 4), t)).sum().backward()
        optimizer.step()


@over("theirs", [SparseAdam, Adam, partial(GroupAdam, l21=0.01)])
def test_a_converted_table_continues_with_the_embeddings_moments(theirs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4, sparse=theirs is SparseAdam, padding_idx=0, dtype=torch.float64))
    adam = theirs(model.parameters(), lr=0.1)
    lookups(model, adam, range(4))
    kept, table = copy.deepcopy(model), convert(copy.deepcopy(model))
    of_tensor, of_table = GroupAdam(kept.parameters(), l21=0.01), GroupAdam(table.parameters(), l21=0.01)
    for one in (of_tensor, of_table):
        one.load_state_dict(adam.state_dict())
    kept[0].sparse = True
    for one, optimizer in ((kept, of_tensor), (table, of_table)):
        lookups(one, optimizer, range(4, 9))
    ids = torch.arange(1, 7)
    torch.testing.assert_close(table.eval()(ids), kept(ids), rtol=1e-13, atol=1e-13)
    assert table[0].table.num_rows == 6
    assert_identical(of_table.state_dict()["state"][0]["keys"].sort().values, ids)


def test_an_embeddings_state_is_refused_by_a_table_without_its_ids():
    embedding, table = nn.Embedding(3, 4), HashEmbedding(4)
    table(torch.tensor([100, 200]))
    adam, ours = Adam(embedding.parameters()), GroupAdam(table.parameters())
    embedding(torch.arange(3)).sum().backward()
    adam.step()
    with pytest.raises(ValueError, match=r"'keys' .*missing"):
        ours.load_state_dict(adam.state_dict())


def test_a_state_without_the_parameters_of_a_removed_group():
    kept, removed = parameter(2), parameter(3, seed=1)
    optimizer = make(GroupAdam, [{"params": [removed]}, {"params": [kept]}], **REGULARIZED)
    train(optimizer, 2)
    group = optimizer.param_groups.pop(0)
    state = optimizer.state_dict()
    assert [len(one["params"]) for one in state["param_groups"]] == [1]
    assert_identical(state["state"], {0: optimizer.state[kept]})
    optimizer.add_param_group(group)  # its moments are still there
    assert len(optimizer.state_dict()["state"]) == 2


def test_a_layer_that_is_added_late_and_a_copied_optimizer_of_a_table():
    table, dense = HashEmbedding(4, seed=1), parameter(4)
    optimizer = GroupAdam(table.parameters(), lr=0.1)
    table(torch.arange(5)).sum().backward()
    optimizer.step()
    optimizer.add_param_group({"params": [dense], "lr": 0.2})
    copied = copy.deepcopy(optimizer)
    backward(optimizer, (table(torch.arange(5)) * dense).sum())
    optimizer.step()
    assert [optimizer.state[group["params"][0]]["step"].item() for group in optimizer.param_groups] == [2, 1]
    state = copied.state_dict()["state"]
    assert state.keys() == {0}
    assert state[0]["step"] == 1


# Older ones keep a state that nothing tells from Adam's.
ADAMW_SAYS_SO = "decoupled_weight_decay" in AdamW([torch.zeros(1)]).param_groups[0]


@over(
    ("cls", "theirs", "match"),
    [
        (GroupAdam, partial(Adam, amsgrad=True), "amsgrad.*GroupAMSGrad"),
        (GroupAMSGrad, Adam, "'max_exp_avg_sq' of 'amsgrad' is missing"),
        *([(GroupAdam, AdamW, "decoupled_weight_decay")] if ADAMW_SAYS_SO else []),
        (GroupAdam, NAdam, "state 'mu_product' is not of the rule 'adam'"),
        (GroupMomentum, partial(SGD, momentum=0.8, dampening=0.5), "dampening"),
        (GroupSGD, partial(SGD, momentum=0.8), "momentum"),
        (GroupAdagrad, Adam, "exp_avg"),
    ],
)
def test_a_state_of_another_rule_is_refused_by_name(cls, theirs, match):
    _, reference = trained(theirs)
    ours = cls([parameter(4, 3)], lr=0.3, l21=0.1)
    train(ours, 1)
    with refused(ours, ValueError, match):
        ours.load_state_dict(reference.state_dict())


def second(**changes: Any) -> Any:
    return lambda state: state["state"][1].update(changes)


def group(**changes: Any) -> Any:
    return lambda state: state["param_groups"][0].update(changes)


@over(
    ("change", "match"),
    [
        (second(exp_avg=torch.zeros(2, 3)), r"exp_avg.*\[2, 3\]"),
        (lambda s: s["state"][1].pop("exp_avg_sq"), "exp_avg_sq"),
        (lambda s: s["state"][1].pop("step"), "step"),
        *((second(step=step), r"'step' must be a number from 0 to 2⁵³.*group 0") for step in (-1.0, 1e308, 2.0**60)),
        (second(step=float("nan")), r"'step' must be a number from 0 to 2⁵³"),
        (second(exp_avg="x"), "state 'exp_avg' must be a tensor, got str"),
        (second(u=torch.zeros(())), r"'u'"),
        (group(l21=float("nan")), "l21.*nan"),
        (group(groups=torch.tensor([0, 1])), r"groups.*\[4\]"),
        (group(norm="t"), "norm"),
        (group(amsgrad=True), "amsgrad"),
        (lambda s: s["param_groups"][0]["params"].pop(), "param groups of"),
        (lambda s: s["param_groups"].clear(), "param groups of"),
    ],
)
def test_a_broken_state_is_refused_and_changes_nothing(change, match):
    optimizer = GroupAdam([parameter(4, 3), parameter(4, 3)], lr=0.1, l21=0.02)
    train(optimizer, 2)
    state = copy.deepcopy(optimizer.state_dict())
    train(optimizer, 1, start=2)
    change(state)
    with refused(optimizer, (ValueError, TypeError), match):
        optimizer.load_state_dict(state)
    train(optimizer, 1, start=3)


def test_the_users_load_hooks_come_first_and_what_is_passed_in_stays():
    x, y = parameter(4, 3), parameter(4, 3)
    optimizer, other = GroupAdam([x], l21=0.02), GroupAdam([y], l21=0.02)
    train(optimizer, 2)

    def rename(_, state):  # state that only the hook makes loadable
        entry = {name.removeprefix("old_"): value for name, value in state["state"][0].items()}
        return {**state, "state": {0: entry}}

    other.register_load_state_dict_pre_hook(rename)
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0] = {f"old_{name}": value for name, value in state["state"][0].items()}
    before = copy.deepcopy(state)
    for _ in range(2):  # by then a hook of the optimizer's own would come before
        other.load_state_dict(state)
    assert_identical(other.state[y], optimizer.state[x])
    assert_identical(state, before)


@over("cls", KINDS[:3])
def test_distributed_checkpoint_knows_all_state_before_the_first_step(cls):
    """It loads into the entries that a step of lr = 0 on a fresh optimizer makes: what is not there is not loaded."""

    def entries(steps: int) -> Any:
        model = nn.Linear(3, 2, dtype=torch.float64)
        optimizer = make(cls, model.parameters(), l21=0.02)
        train(optimizer, steps)
        return get_optimizer_state_dict(model, optimizer)["state"]["weight"].keys()

    assert entries(3) == entries(0)


class TestStateOfParametersInOtherGroups:
    @staticmethod
    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 3, dtype=torch.float64), nn.Embedding(3, 3, dtype=torch.float64))

    def trained(self, wrap: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = self.net()
        optimizer = wrap(model)
        train(optimizer, 3)
        return model, optimizer

    def test_adams_state_is_matched_by_names(self):
        model, adam = self.trained(lambda model: Adam(model.named_parameters(), lr=0.1))
        other = self.net()
        other.load_state_dict(model.state_dict())
        ours = GroupAdam(param_groups(other, l21=0.0), lr=0.3)
        ours.load_state_dict(adam.state_dict())
        assert [group["param_names"] for group in ours.param_groups] == [["1.weight"], ["0.weight", "0.bias"]]
        assert [group["lr"] for group in ours.param_groups] == [0.1, 0.1]
        for parameters, optimizer in ((dict(model.named_parameters()), adam), (dict(other.named_parameters()), ours)):
            for t in range(3):
                for number, x in enumerate(parameters.values()):
                    x.grad = wave(x, t + number)
                optimizer.step()
        for x, y in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(y, x, rtol=1e-13, atol=1e-13)

    def test_names_given_afterwards_are_enough(self):
        model, adam = self.trained(lambda model: Adam(model.parameters()))
        state = adam.state_dict()
        ours = GroupAdam(param_groups(self.net(), l21=0.1))
        with refused(ours, ValueError, "param_names"):
            ours.load_state_dict(state)
        state["param_groups"][0]["param_names"] = [name for name, _ in model.named_parameters()]
        ours.load_state_dict(state)
        (embedding,) = ours.param_groups[0]["params"]
        assert torch.equal(ours.state[embedding]["exp_avg"], adam.state[model[1].weight]["exp_avg"])
        assert ours.param_groups[0]["l21"] == 0.1

    def test_equal_groups_in_another_order_are_matched_by_names(self):
        """Load two weights of equal shape, which would exchange their moments if matched by place."""
        model, ours = self.trained(lambda model: GroupAdam([(n, p) for n, p in model.named_parameters() if p.ndim > 1]))
        other = self.net()
        again = GroupAdam([("1.weight", other[1].weight), ("0.weight", other[0].weight)])
        again.load_state_dict(ours.state_dict())
        for number in (0, 1):
            expected, found = ours.state[model[number].weight], again.state[other[number].weight]
            assert torch.equal(found["exp_avg"], expected["exp_avg"])

    def test_parameters_that_cannot_be_matched(self):
        _, adam = self.trained(lambda model: Adam(model.named_parameters()))
        small = nn.Sequential(nn.Linear(3, 3), nn.Embedding(3, 3), nn.Linear(2, 2))
        for groups in (param_groups(small, l21=0.1), param_groups(nn.Sequential(nn.Embedding(3, 3)), l21=0.1)):
            ours = GroupAdam(groups)
            with refused(ours, ValueError, "matched by their names"):
                ours.load_state_dict(adam.state_dict())
        apart = Adam([{"params": [item]} | {"lr": 0.1 * n} for n, item in enumerate(self.net().named_parameters(), 1)])
        ours = GroupAdam(list(self.net().named_parameters()))
        with refused(ours, ValueError, "different options"):
            ours.load_state_dict(apart.state_dict())
