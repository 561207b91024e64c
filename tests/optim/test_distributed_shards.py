"""Parameters that are spread over ranks (DTensor, FSDP2) train as they do on one process."""

import re

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

import sparsegroup
from distributed_cases import Ranks, on_two, own_half, whole
from sparsegroup import GroupAdaHessian, GroupAdam, GroupFTRL, TargetRate, feature_rate, param_groups, sparsity_report

CASES = [
    ("GroupAdam", {"lr": 0.05, "l21": 0.3, "l1": 1e-4}),
    ("GroupAdam", {"lr": 0.05, "l21": 0.3, "norm": "metric", "penalty": "mcp", "weight_decay": 1e-3}),
    ("GroupAdam", {"lr": 0.05, "l21": 0.3, "groups": "channels", "foreach": True}),
    ("GroupAMSGrad", {"lr": 0.05, "l21": 0.3, "penalty": "hard"}),
    ("GroupAdagrad", {"lr": 0.05, "l21": 0.3, "l2": 1e-3}),
    ("GroupFTRL", {"lr": 0.1, "l21": 0.1}),
    ("GroupMomentum", {"lr": 0.1, "l21": 2.0}),
    ("GroupSGD", {"lr": 0.1, "l21": 2.0, "fused": False}),
]


def model_of() -> nn.Sequential:
    """Rows: 7 and 5, of which rank 0 gets 4 and 3; and 1, of which rank 1 gets none."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 1))


def sharded_model() -> nn.Sequential:
    model = model_of()
    if on_two():
        fully_shard(model[0])
        fully_shard(model)
    return model


def train(optimizer: torch.optim.Optimizer, model: nn.Module, steps: int = 6) -> None:
    """The mean over the ranks of the gradients of their halves is the gradient of the batch."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        batch = own_half(torch.randn(16, 6, generator=generator))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch), batch[:, :1] * 2).backward()
        optimizer.step()


def content(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    return {
        f"{name} {part}": whole(value)
        for name, parameter in model.named_parameters()
        for part, value in {"x": parameter, **optimizer.state[parameter]}.items()
    }


def assert_same(found: dict[str, Tensor], alone: dict[str, Tensor]) -> None:
    assert found.keys() == alone.keys()
    for part, value in alone.items():
        torch.testing.assert_close(found[part], value, rtol=1e-3, atol=1e-5, msg=lambda text, of=part: f"{of}: {text}")
        assert torch.equal(found[part] == 0, value == 0), part


def fsdp_training(name: str, options: dict) -> dict[str, Tensor]:
    model = sharded_model()
    optimizer = getattr(sparsegroup, name)(model.parameters(), **options)
    train(optimizer, model)
    for entry in optimizer.state.values():
        assert all(isinstance(value, DTensor) == on_two() for part, value in entry.items() if part != "step")
    return content(optimizer, model)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_fsdp2_trains_as_one_process(ranks: Ranks, name, options):
    alone = fsdp_training(name, options)
    live = [bool(row.any()) for layer in (0, 2) for row in alone[f"{layer}.weight x"]]
    assert any(live), "the case should leave some groups"
    assert not all(live), "the case should set some groups to zero"
    for found in ranks.call(fsdp_training, name, options):
        assert_same(found, alone)


def test_state_in_bfloat16(ranks: Ranks):
    options = {"lr": 0.05, "l21": 0.3, "state_dtype": torch.bfloat16}
    alone = fsdp_training("GroupAdam", options)
    for found in ranks.call(fsdp_training, "GroupAdam", options):
        assert found["0.weight u"].dtype == found["0.weight exp_avg"].dtype == torch.bfloat16
        torch.testing.assert_close(found["0.weight x"], alone["0.weight x"], rtol=0.05, atol=0.02)


def placed(placements: list[Placement], gradient_placements: list[Placement], options: dict) -> dict[str, Tensor]:
    """Three steps of a 6 × 4 parameter whose gradient is laid out in a way of its own."""
    torch.manual_seed(3)
    x, gradients = torch.randn(6, 4), torch.randn(3, 6, 4) * torch.tensor([3.0, 0.3] * 3).unsqueeze(1)
    gradients *= torch.tensor([2.0, 0.1, 1.0, 0.05])
    if on_two():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        x = distribute_tensor(x, mesh, placements)
    parameter = nn.Parameter(x)
    optimizer = GroupAdam([parameter], lr=0.1, **options)
    for gradient in gradients:
        if on_two() and isinstance(gradient_placements[0], Partial):
            gradient = DTensor.from_local(gradient / 2, mesh, gradient_placements)
        elif on_two():
            gradient = distribute_tensor(gradient, mesh, gradient_placements)
        parameter.grad = gradient
        optimizer.step()
    return {part: whole(value) for part, value in {"x": parameter, **optimizer.state[parameter]}.items()}


IDS = torch.tensor([0, 1, 0, 1, 2, 0])


@pytest.mark.parametrize(
    ("placements", "of_gradient", "options"),
    [
        ([Shard(0)], [Shard(0)], {"groups": "rows", "l21": 3.0}),
        ([Shard(0)], [Partial()], {"groups": 0, "l21": 3.0}),
        ([Shard(0)], [Replicate()], {"groups": "rows", "l21": 3.0}),
        ([Shard(1)], [Shard(1)], {"groups": "columns", "l21": 3.0}),
        ([Shard(1)], [Shard(0)], {"groups": -1, "l21": 3.0}),
        ([Shard(1)], [Shard(1)], {"groups": "rows"}),
        ([Replicate()], [Partial()], {"groups": "columns", "l21": 3.0}),
        ([Replicate()], [Shard(0)], {"groups": IDS, "l21": 3.0}),
        ([Replicate()], [Replicate()], {"groups": "all", "l21": 3.0}),
    ],
)
def test_placements_of_parameter_and_gradient(ranks: Ranks, placements, of_gradient, options):
    alone = placed(placements, of_gradient, options)
    for found in ranks.call(placed, placements, of_gradient, options):
        assert_same(found, alone)


def refused(
    placement: Placement, groups: object = "rows", kind: type = GroupAdam, l21: float = 1.0, shape: tuple = (6, 4)
) -> str:
    parameter = nn.Parameter(distribute_tensor(torch.ones(shape), init_device_mesh("cpu", (2,)), [placement]))
    before = parameter.full_tensor()
    parameter.grad = torch.ones_like(parameter)
    with pytest.raises(ValueError, match=r"layer\.weight") as raised:
        kind([("layer.weight", parameter)], lr=0.1, groups=groups, l21=l21).step()
    assert torch.equal(parameter.full_tensor(), before)
    return str(raised.value)


@pytest.mark.parametrize(
    ("placement", "groups", "named"),
    [
        (Shard(1), "rows", "groups='rows'.*shard its dimension 0"),
        (Shard(0), "columns", "groups='columns'.*shard its dimension 1"),
        (Shard(0), "all", "groups='all'"),
        (Shard(0), IDS, "groups=a tensor of ids"),
    ],
)
def test_groups_across_ranks_are_refused(ranks: Ranks, placement, groups, named):
    for message in ranks.call(refused, placement, groups):
        assert re.search(named, message)
        for part in ("layer.weight", "[6, 4]", str(placement), "Replicate the parameter"):
            assert part in message
    for message in ranks.call(refused, placement, groups, GroupFTRL, 0.0):  # FTRL forgets the start by group
        assert re.search(named, message)


def partial() -> str:
    parameter = DTensor.from_local(torch.ones(6, 4), init_device_mesh("cpu", (2,)), [Partial()])
    with pytest.raises(ValueError, match="must be Shard or Replicate") as raised:
        GroupAdam([nn.Parameter(parameter)])
    return str(raised.value)


def foreign_gradient() -> str:
    parameter = nn.Parameter(distribute_tensor(torch.ones(6, 4), init_device_mesh("cpu", (2,)), [Shard(0)]))
    optimizer = GroupAdam([parameter])
    parameter.grad = torch.ones(6, 4)
    with pytest.raises(ValueError, match="the gradient of a DTensor must also be one, got Tensor") as raised:
        optimizer.step()
    return str(raised.value)


def flattened(l21: float) -> str:
    model = FullyShardedDataParallel(model_of(), use_orig_params=True, device_id=torch.device("cpu"))
    if not l21:
        train(GroupAdam(model.parameters(), lr=0.05), model, 1)
        return ""
    with pytest.raises(ValueError, match="fully_shard") as raised:
        GroupAdam(model.named_parameters(), l21=l21)
    return str(raised.value)


@pytest.mark.parametrize(
    ("function", "arguments", "parts"),
    [
        (refused, (Shard(0), "rows", GroupAdaHessian), ["second derivatives"]),
        (refused, (Shard(0), "all", GroupAdam, 1.0, (6,)), ["groups='all'"]),
        (partial, (), ["P"]),
        (foreign_gradient, (), ["distribute_tensor"]),
        (flattened, (1.0,), ["l21=1", "0.weight"]),  # the first FSDP flattens groups away
    ],
    ids=["second order", "one dimension", "partial", "foreign gradient", "first FSDP"],
)
def test_what_shards_cannot_have_is_refused(ranks: Ranks, function, arguments, parts):
    for message in ranks.call(function, *arguments):
        assert all(part in message for part in parts)


def test_the_first_fsdp_trains_without_lambda(ranks: Ranks):
    assert ranks.call(flattened, 0.0) == ["", ""]


def swept() -> tuple[Tensor, str, float, float | None, float]:
    """A target on the way and at the end, a sweep, and what reports say of it."""
    model = sharded_model()
    groups = param_groups(model, layers=nn.Linear, l21=1e-3)
    optimizer = GroupAdam(groups, lr=0.05)
    target = TargetRate(optimizer, 0.5, steps=4, param_groups=[0])
    for _ in range(4):
        train(optimizer, model, 1)
        target.step()
    rate = feature_rate(model[0].weight)
    return whole(model[0].weight), str(sparsity_report(optimizer)), rate, target.rate, target.l21


def test_targets_sweeps_and_reports_count_the_groups_of_all_ranks(ranks: Ranks):
    weight, report, rate, target_rate, l21 = swept()
    assert 0 < rate < 1
    for found in ranks.call(swept):
        torch.testing.assert_close(found[0], weight, rtol=1e-3, atol=1e-5)
        assert found[1:4] == (report, rate, target_rate)
        assert found[4] == pytest.approx(l21, rel=1e-4)


def split_report() -> tuple[str, float]:
    x = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]])
    if on_two():
        x = distribute_tensor(x, init_device_mesh("cpu", (2,)), [Shard(1)])
    parameter = nn.Parameter(x)
    return str(sparsity_report(GroupAdam([parameter]))), feature_rate(parameter)


def test_a_report_of_groups_across_ranks(ranks: Ranks):
    assert ranks.call(split_report) == [split_report()] * 2


def of_the_whole_model() -> tuple[Tensor, Tensor]:
    """u and a moment of a sharded model, loaded by an optimizer of the whole one."""
    model, alone = sharded_model(), model_of()
    optimizer, other = (GroupAdam(one.parameters(), lr=0.05, l21=0.3) for one in (model, alone))
    train(optimizer, model)
    other.load_state_dict(optimizer.state_dict())
    entry = other.state[alone[0].weight]
    assert not isinstance(entry["u"], DTensor)
    return entry["u"], entry["exp_avg"]


def test_a_sharded_state_is_loaded_by_a_whole_model(ranks: Ranks):
    alone = of_the_whole_model()
    for found in ranks.call(of_the_whole_model):
        torch.testing.assert_close(found, alone, rtol=1e-3, atol=1e-5)


def resumed(from_whole: bool) -> dict[str, Tensor]:
    """Trained, saved as tensors of this rank or as whole ones, loaded by another optimizer, trained on."""
    model, options = sharded_model(), {"lr": 0.05, "l21": 0.3}
    optimizer = GroupAdam(model.parameters(), **options)
    train(optimizer, model)
    saved = optimizer.state_dict()
    if from_whole:
        saved["state"] = {
            number: {part: whole(value) for part, value in entry.items()} for number, entry in saved["state"].items()
        }
    other = GroupAdam(model.parameters(), **options)
    other.load_state_dict(saved)
    train(other, model, 2)
    return content(other, model)


@pytest.mark.parametrize("from_whole", [False, True])
def test_states_are_saved_and_loaded(ranks: Ranks, from_whole):
    alone = resumed(from_whole)
    for found in ranks.call(resumed, from_whole):
        assert_same(found, alone)
