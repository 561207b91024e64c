"""State: its names, when `u` exists, saving, loading, resuming, copying."""

import copy
import io
import pickle
from typing import Any

import torch
from torch import nn

from optimizer_cases import (
    ALL,
    ALLOW_CREATE_GRAPH,
    LOW_PRECISION,
    assert_identical,
    backward,
    make,
    parameter,
    refused,
    snapshot,
    train,
    train_lookup,
)
from over import over
from sparsegroup import (
    GroupAdagrad,
    GroupAdaHessian,
    GroupAdam,
    GroupAMSGrad,
    GroupFTRL,
    GroupMomentum,
    GroupRowWiseAdagrad,
    GroupSGD,
)

pytestmark = ALLOW_CREATE_GRAPH

TORCHS_NAMES = {
    GroupSGD: set(),
    GroupMomentum: {"momentum_buffer"},
    GroupAdagrad: {"sum"},
    GroupRowWiseAdagrad: {"group_sum"},
    GroupAdam: {"exp_avg", "exp_avg_sq"},
    GroupAMSGrad: {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    GroupAdaHessian: {"exp_avg", "exp_avg_sq"},
    GroupFTRL: {"sum"},
}
REGULARIZED = {"l1": 0.01, "l21": 0.02, "l2": 0.01}
BATCHES = [[0, 1, 1], [4, 2], [0, 4], [], [3, 0], [1, 2, 3], [2], [0, 1, 2, 3, 4]]


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def through_pickle(item: Any) -> Any:
    return pickle.loads(pickle.dumps(item))


@over("cls", ALL)
def test_state_has_torchs_names_plus_u_where_it_is_needed(cls):
    """For a regularizer, for FTRL's start, and for the rounding of a low-precision parameter."""
    x, plain, *low = parameter(4, 3), parameter(4, 3), *(parameter(4, 3, dtype=dtype) for dtype in LOW_PRECISION)
    optimizer = make(cls, [{"params": [x], **REGULARIZED}, {"params": [plain, *low]}])
    train(optimizer, 3)
    for p in (x, plain, *low):
        state = optimizer.state[p]
        u = set() if p is plain and cls is not GroupFTRL else {"u"}
        assert state.keys() == {"step"} | u | TORCHS_NAMES[cls]
        assert (state["step"].shape, state["step"]) == ((), 3)
        assert all(value.shape == p.shape for name, value in state.items() if name != "step")
        assert not any(value.requires_grad for value in state.values())
    for p in low:
        assert optimizer.state[p]["u"].dtype == torch.float32
        assert optimizer.state[p]["u"].abs().max() > 0


@over("cls", [cls for cls in ALL if cls is not GroupFTRL])
@over("name", ["l1", "l21", "l2"])
def test_a_regularizer_turned_on_later_starts_from_u_0(cls, name):
    x = parameter(4, 3)
    optimizer = make(cls, [x])
    train(optimizer, 3)
    y = nn.Parameter(x.detach().clone())
    zero_u = make(cls, [y], **{name: 0.05})
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["u"] = torch.zeros_like(x)
    state["param_groups"][0][name] = 0.05
    zero_u.load_state_dict(state)
    optimizer.param_groups[0][name] = 0.05
    train(optimizer, 2, start=3)
    train(zero_u, 2, start=3)
    assert_identical(x, y)
    assert_identical(optimizer.state[x], zero_u.state[y])


@over("cls", ALL)
def test_a_regularizer_turned_off_lets_u_drain(cls):
    x = parameter(4, 3)
    optimizer = make(cls, [x], l1=0.3, l21=0.3)
    train(optimizer, 4)
    assert optimizer.state[x]["u"].abs().max() > 0.1
    for name in ("l1", "l21"):
        optimizer.param_groups[0][name] = 0.0
    train(optimizer, 1, start=4)
    assert optimizer.state[x]["u"].abs().max() < 1e-13


@over("cls", ALL)
@over("regularized", [False, True])
def test_at_lr_0_the_moments_advance_and_the_weights_stay(cls, regularized):
    options = REGULARIZED if regularized else {}
    x, y = parameter(4, 3), parameter(4, 3)
    paused, running = make(cls, [x], **options), make(cls, [y], **options)
    train(paused, 2)
    train(running, 2)
    before = snapshot(paused)
    paused.param_groups[0]["lr"] = 0.0
    train(paused, 1, start=2)
    train(running, 1, start=2)
    after, advanced = snapshot(paused), snapshot(running)
    assert_identical(after["params"], before["params"])
    u = {"u"} & after["state"][0].keys()
    for name, value in after["state"][0].items():
        assert_identical(value, (before if name in u else advanced)["state"][0][name], name)
    paused.param_groups[0]["lr"] = 0.1
    train(paused, 1, start=3)
    assert not torch.equal(x, before["params"][0])


@over("cls", ALL)
@over(
    ("dtype", "sparse"), [(torch.float64, False), (torch.float32, True), (torch.bfloat16, True), (torch.float16, False)]
)
def test_resuming_from_a_file_equals_not_stopping(cls, dtype, sparse):
    # A lookup of nothing has no graph to differentiate twice, see test_gradients.py.
    batches = [rows for rows in BATCHES if rows or cls is not GroupAdaHessian]

    def go(optimizer, start, stop):
        if sparse:
            train_lookup(optimizer, batches[start:stop], start)
        else:
            train(optimizer, stop - start, start)

    x = parameter(5, 3, dtype=dtype)
    whole = make(cls, [x], **REGULARIZED)
    go(whole, 0, 4)
    weights, state = through_a_file({"x": x.detach()})["x"], through_a_file(whole.state_dict())
    go(whole, 4, 7)

    y = nn.Parameter(weights)
    resumed = make(cls, [y])  # the regularizer comes with the state
    resumed.load_state_dict(state)
    go(resumed, 4, 7)
    assert_identical(x, y)
    assert_identical(whole.state[x], resumed.state[y])


@over("cls", ALL)
@over(
    ("source", "target", "computed"),
    [
        (torch.float64, torch.float32, torch.float32),
        (torch.bfloat16, torch.float64, torch.float64),
        (torch.float32, torch.bfloat16, torch.float32),
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


@over("cls", ALL)
@over("copy_of", [copy.deepcopy, through_pickle])
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


@over("cls", ALL)
def test_hyperparameters_come_with_the_state(cls):
    x, y = parameter(4, 3), parameter(4, 3)
    ids = torch.tensor([1, 0, 1, 2])
    optimizer = make(cls, [x], lr=torch.tensor(0.25), groups=ids, norm="metric", **REGULARIZED)
    other = make(cls, [y])
    other.load_state_dict(through_a_file(optimizer.state_dict()))
    assert_identical(snapshot(other)["groups"], snapshot(optimizer)["groups"])


def test_named_parameters_keep_their_names_through_a_state_without_names():
    model = nn.Linear(2, 2)
    named, unnamed = GroupAdam(model.named_parameters()), GroupAdam(model.parameters())
    named.load_state_dict(unnamed.state_dict())
    assert named.param_groups[0]["param_names"] == ["weight", "bias"]


def test_state_of_a_parameter_without_steps_loads():
    used, unused = parameter(2), parameter(3)
    optimizer, other = (GroupAdam(params, l21=0.1) for params in ([used, unused], [parameter(2), parameter(3)]))
    used.square().sum().backward()
    optimizer.step()
    other.load_state_dict(optimizer.state_dict())
    assert len(other.state) == 1
