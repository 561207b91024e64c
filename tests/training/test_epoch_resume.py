"""Runs of several epochs that are cut off anywhere and resumed end with the same bits as one that is not."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from following import CutOffError, Each, cut_off_at
from kill_runs import differences, outcome_of
from sparsegroup.data import MemoryLog
from sparsegroup.training import Config, Session
from sparsegroup.training.run_folder import RunFolder

BATCH = 50


def noisy_log() -> MemoryLog:
    """Clicks that nothing says anything of, but are soon learnt by heart: later epochs are worse."""
    draw = np.random.default_rng(2)
    first, second = draw.integers(0, 5, 500), draw.integers(0, 200, 500)
    keys = np.stack([first, second | (1 << 48)], axis=1).astype(np.int64)
    return MemoryLog("noisy", ("a", "b"), keys, (draw.random(500) < 0.45).astype(np.float32), 440)


def config(**settings: Any) -> Config:
    common = {"model": "opnn", "dim": 3, "hidden": [6], "dropout": 0.2, "batch_size": BATCH, "lr": 0.2, "l21": 1e-5}
    often = {"checkpoint_steps": 5, "keep_checkpoints": 1, "checkpoint_minutes": 0}
    return Config.of(**{**common, **often, "epochs": 4, "validation": 0.1, "shuffle_buffer": 120, **settings})


CASES: dict[str, dict[str, Any]] = {
    "the best comes back": {"patience": 2, "epochs": 6, "schedule": "cosine", "warmup": 0.05, "network_lr": 0.15},
    "reset, to a size": {"after_first_epoch": "reset", "l21": 0.0, "target_rate": 0.3, "lr": 0.02, "epochs": 2},
    "frozen, all rows kept whole": {"after_first_epoch": "freeze", "incremental_checkpoints": False, "epochs": 2},
    "nothing held out": {"validation": 0.0, "epochs": 2, "keep_checkpoints": 2, "average": 0.7},
}


EVERY = {"keep": 3, "restore": 1, "checkpoint": 6}
"""Of how many calls of a function one is cut off."""


@pytest.mark.parametrize("case", CASES)
def test_cut_off_anywhere_and_resumed(tmp_path: Path, case: str) -> None:
    log, settings = noisy_log(), config(**CASES[case])
    calls = Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("keep", "restore", "checkpoint"):
            real = getattr(Session, name)

            def counted(self: Session, *arguments: Any, _real: Any = real, _name: str = name, **keywords: Any) -> Any:
                calls[_name] += 1
                return _real(self, *arguments, **keywords)

            patch.setattr(Session, name, counted)
        session = Session.begin(tmp_path / "whole", settings, log)
        kept: list[set[str]] = []
        watch = Each(batch=lambda _: kept.append({path.name for path in session.checkpoints.paths()}))
        summary = session.train(callbacks=[watch])
    expected = outcome_of(tmp_path / "whole")
    if case == "the best comes back":
        best = summary.best_epoch
        assert best < summary.epochs < 6
        validation = session.plan.arguments(log)["validation"](1)
        found = session.trainer.evaluate(validation).log_loss
        assert found == pytest.approx(summary.validation.log_loss, rel=1e-6)  # the weights are the best epoch's
        assert calls["restore"] == 1
        assert all(f"step-{8 * best:012d}" in names for names in kept[8 * best + 1 :])  # on disk until the end
        assert max(map(len, kept)) <= 4  # those that changes build on among them
        last = RunFolder(tmp_path / "whole").last_checkpoint().name
        assert [path.name for path in session.checkpoints.paths()] == [last]
    moments: list[tuple[str, int, bool]] = [
        (name, at, after)
        for name, count in calls.items()
        for at in range(1, count + 1, EVERY[name])
        for after in (False, True)
        if after or name != "checkpoint"
    ]
    for number, (name, at, after) in enumerate(moments):
        folder = tmp_path / f"cut-{number}"
        with pytest.MonkeyPatch.context() as patch:
            cut_off_at(patch, Session, name, at, after=after)
            with pytest.raises(CutOffError):
                Session.begin(folder, settings, log).train()
        Session.resume(folder, log).train()
        assert not differences(expected, outcome_of(folder)), (name, at, after)
