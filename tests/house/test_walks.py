"""How many modules a piece of work passes: CONTRIBUTING describes these walks, and they stay as short as it says."""

import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

from sparsegroup import GroupAdagrad, GroupAdam, HashEmbedding, TargetRate
from sparsegroup.cli.options import setting_values
from sparsegroup.data import SyntheticConfig, open_log, synthetic_log
from sparsegroup.training import read_config
from sparsegroup.training.plan import EpochPlan


def walk(action: Callable[[], object]) -> list[str]:
    """The modules of this library whose functions `action` calls, on any thread, in order; one in a row once."""
    modules: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("sparsegroup.") and modules[-1:] != [name]:
            modules.append(name)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return modules


def assert_passes(modules: list[str], *, most: int, returns: int) -> None:
    """At most `most` different ones, and at most `returns` returns to one that was left."""
    distinct = len(set(modules))
    assert 0 < distinct <= most, modules
    assert len(modules) - distinct <= returns, modules


def test_a_key_passes_eight_modules_from_the_embedding_to_autograd() -> None:
    torch.manual_seed(0)
    table, keys = HashEmbedding(8), torch.randint(0, 1000, (64, 4))
    optimizer = GroupAdam(table.parameters(), l21=1e-3)
    for _ in range(2):
        table(keys).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    passed = walk(lambda: table(keys))
    assert_passes(passed, most=8, returns=2)
    assert (passed[0], passed[-1]) == ("sparsegroup.table.hash_embedding", "sparsegroup.table.lookup.autograd")


def test_a_gradient_passes_nine_modules_of_a_tensor_and_twelve_of_a_table() -> None:
    x, table, keys = torch.nn.Parameter(torch.randn(16, 8)), HashEmbedding(8), torch.arange(256).reshape(64, 4)
    for optimizer, most in ((GroupAdam([x], l21=1e-3), 9), (GroupAdam(table.parameters(), l21=1e-3), 12)):
        for step in range(3):
            optimizer.zero_grad()
            (x if most == 9 else table(keys)).square().sum().backward()
            if step < 2:
                optimizer.step()
        assert_passes(walk(optimizer.step), most=most, returns=2)


def test_a_line_of_a_log_passes_ten_modules_to_the_plan_of_an_epoch(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("click,user,price\n" + "".join(f"{row % 2},u{row % 7},{row}.5\n" for row in range(300)))
    log = open_log(path, columns={"click": "label", "user": "category", "price": "number"})
    plan = EpochPlan(log.train_rows, 64, shuffle_buffer=min(100, log.most_shuffled))
    passed = {name.removeprefix("sparsegroup.") for name in walk(lambda: list(plan.batches(log, 0)))}
    others = {name for name in passed if name.split(".")[0] in ("table", "kernels", "optim", "rules")}
    own = {f"data.{name}" for name in ("schema", "kinds", "values", "keys", "batches", "order")}
    own |= {f"data.raw.{name}" for name in ("encode", "files", "raw_log", "text")}
    assert passed - others <= own | {"training.plan"}, passed


def test_a_target_rate_is_declared_decided_and_used_in_three_modules_before_the_target() -> None:
    log = synthetic_log(SyntheticConfig(rows=200))
    optimizer = GroupAdagrad(HashEmbedding(4).parameters())
    targets: list[object] = []

    def from_the_option_to_the_target() -> None:
        config = read_config(None, setting_values(None, {"target_rate": 0.1}, [])).resolved_for(log)
        targets.append(config.optimizer.target(optimizer, steps=10))

    passed = walk(from_the_option_to_the_target)
    assert isinstance(targets[0], TargetRate)
    named = {module for module in passed if "target_rate" in inspect.getsource(sys.modules[module])}
    assert named == {f"sparsegroup.{name}" for name in ("settings.declared", "settings.auto", "training.build")}
    assert passed[0] == "sparsegroup.cli.options"
    assert "sparsegroup.optim.target" in passed
