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
    ("GroupAdam", {"lr": 0.05, "l21": 0.3, "norm": "metric", "penalty": "mcp", "weight_decay": 1e-3}),
    ("GroupAdam", {"lr": 0.05, "l21": 0.3, "l1": 1e-4, "groups": "channels", "foreach": True}),
    ("GroupFTRL", {"lr": 0.1, "l21": 0.1}),
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
        ([Shard(0)], [Partial()], {"groups": 0, "l21": 3.0}),
        ([Shard(0)], [Replicate()], {"groups": "rows", "l21": 3.0}),
        ([Shard(1)], [Shard(0)], {"groups": -1, "l21": 3.0}),
        ([Shard(1)], [Shard(1)], {"groups": "rows"}),
        ([Replicate()], [Shard(0)], {"groups": IDS, "l21": 3.0}),
        ([Replicate()], [Partial()], {"groups": "all", "l21": 3.0}),
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


def flattened() -> str:
    """The first FSDP flattens groups away: it trains without λ21."""
    model = FullyShardedDataParallel(model_of(), use_orig_params=True, device_id=torch.device("cpu"))
    train(GroupAdam(model.parameters(), lr=0.05), model, 1)
    with pytest.raises(ValueError, match="fully_shard") as raised:
        GroupAdam(model.named_parameters(), l21=1.0)
    return str(raised.value)


ACROSS = [r"layer\.weight", r"\[6, 4\]", "Replicate the parameter"]


@pytest.mark.parametrize(
    ("function", "arguments", "parts"),
    [
        (refused, (Shard(1), "rows"), [*ACROSS, r"groups='rows'.*\(S\(1\)\).*shard its dimension 0"]),
        (refused, (Shard(0), "columns"), [*ACROSS, "groups='columns'.*shard its dimension 1"]),
        (refused, (Shard(0), "all"), [*ACROSS, "groups='all'"]),
        (refused, (Shard(0), IDS), [*ACROSS, "groups=a tensor of ids"]),
        (refused, (Shard(1), "rows", GroupFTRL, 0.0), ["groups='rows'"]),  # FTRL forgets the start by group
        (refused, (Shard(0), "all", GroupAdam, 1.0, (6,)), ["groups='all'"]),
        (refused, (Shard(0), "rows", GroupAdaHessian), ["second derivatives"]),
        (partial, (), ["P"]),
        (foreign_gradient, (), ["distribute_tensor"]),
        (flattened, (), ["l21=1", r"0\.weight"]),
    ],
)
def test_what_shards_cannot_have_is_refused(ranks: Ranks, function, arguments, parts):
    for message in ranks.call(function, *arguments):
        assert all(re.search(part, message) for part in parts)


def swept() -> tuple[Tensor, list[object], float]:
    """A target on the way and at the end, a sweep, and reports, also of groups that are across ranks."""
    model = sharded_model()
    groups = param_groups(model, layers=nn.Linear, l21=1e-3)
    optimizer = GroupAdam(groups, lr=0.05)
    target = TargetRate(optimizer, 0.5, steps=4, param_groups=[0])
    for _ in range(4):
        train(optimizer, model, 1)
        target.step()
    x = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]])
    across = nn.Parameter(distribute_tensor(x, init_device_mesh("cpu", (2,)), [Shard(1)]) if on_two() else x)
    reports = [str(sparsity_report(one)) for one in (optimizer, GroupAdam([across]))]
    rates = [feature_rate(model[0].weight), feature_rate(across), target.rate]
    return whole(model[0].weight), [*rates, *reports], target.l21


def test_targets_sweeps_and_reports_count_the_groups_of_all_ranks(ranks: Ranks):
    weight, reports, l21 = swept()
    assert 0 < reports[0] < 1
    for its_weight, its_reports, its_l21 in ranks.call(swept):
        torch.testing.assert_close(its_weight, weight, rtol=1e-3, atol=1e-5)
        assert its_reports == reports
        assert its_l21 == pytest.approx(l21, rel=1e-4)


def resumed(from_whole: bool) -> tuple[dict[str, Tensor], Tensor]:
    """Trained, saved as tensors of this rank or as whole ones, loaded by another optimizer, trained on.

    Also the u of the sharded state as an optimizer of the whole model has loaded it.
    """
    model, alone, options = sharded_model(), model_of(), {"lr": 0.05, "l21": 0.3}
    optimizer = GroupAdam(model.parameters(), **options)
    train(optimizer, model)
    of_whole = GroupAdam(alone.parameters(), **options)
    of_whole.load_state_dict(optimizer.state_dict())
    u = of_whole.state[alone[0].weight]["u"]
    assert not isinstance(u, DTensor)
    saved = optimizer.state_dict()
    if from_whole:
        saved["state"] = {
            number: {part: whole(value) for part, value in entry.items()} for number, entry in saved["state"].items()
        }
    other = GroupAdam(model.parameters(), **options)
    other.load_state_dict(saved)
    train(other, model, 2)
    return content(other, model), u


@pytest.mark.parametrize("from_whole", [False, True])
def test_states_are_saved_and_loaded_also_by_a_whole_model(ranks: Ranks, from_whole):
    alone, u = resumed(from_whole)
    for found, its_u in ranks.call(resumed, from_whole):
        assert_same(found, alone)
        torch.testing.assert_close(its_u, u, rtol=1e-3, atol=1e-5)
