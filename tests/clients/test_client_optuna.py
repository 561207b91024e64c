"""Optuna: a trial is told of the figures of its training, and ends where the pruner says so."""

import optuna
import pytest
import torch

import optuna_trials
from sparsegroup import GroupAdam, HashEmbedding
from sparsegroup.models import MLP
from sparsegroup.training import Callback, OptunaPruningCallback, Trainer


class Ends(Callback):
    ended = 0

    def on_end(self, trainer: Trainer) -> None:
        self.ended += 1


class PruneFrom(optuna.pruners.BasePruner):
    """Prunes from a step on."""

    def __init__(self, step: int) -> None:
        self.step = step

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        return trial.last_step is not None and trial.last_step >= self.step


def stream(batches: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.randint(50, (10, 2), generator=draw), torch.randint(2, (10,), generator=draw)) for _ in range(batches)
    ]


def trained(trial: optuna.Trial, monitor: str, *callbacks: Callback) -> Trainer:
    torch.manual_seed(0)
    model, table = MLP(fields=2, dim=4), HashEmbedding(4)
    optimizer = GroupAdam([*table.parameters(), *model.parameters()])
    pruning = OptunaPruningCallback(trial, monitor)
    trainer = Trainer(table, model, optimizer, window=20, callbacks=[pruning, *callbacks])
    trainer.fit(stream(6), epochs=3, validation=stream(2))
    return trainer


@pytest.mark.parametrize("monitor", ["validation_log_loss", "log_loss"])
def test_a_trial_has_the_figures_of_its_training(monitor: str) -> None:
    study = optuna.create_study(pruner=optuna.pruners.NopPruner())
    trial = study.ask()
    trainer = trained(trial, monitor)
    reported = study.trials[0].intermediate_values
    validated = [point for point in trainer.history if point.validation_log_loss is not None]
    points = validated if monitor.startswith("validation") else trainer.history
    assert len(points) == (3 if monitor.startswith("validation") else 9)
    assert reported == {step: getattr(point, monitor) for step, point in enumerate(points, 1)}


@pytest.mark.parametrize("monitor", ["validation_auc", "auc"])
def test_a_trial_that_is_pruned_ends_and_the_others_are_told(monitor: str) -> None:
    study = optuna.create_study(direction="maximize", pruner=PruneFrom(2))
    ends = Ends()

    def objective(trial: optuna.Trial) -> float:
        trained(trial, monitor, ends)
        raise AssertionError("it was not pruned")

    study.optimize(objective, n_trials=1)
    (trial,) = study.trials
    assert (trial.state, trial.last_step, ends.ended) == (optuna.trial.TrialState.PRUNED, 2, 1)


def test_a_figure_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match=r"monitor must be one of .*validation_auc.*, got 'lost'"):
        OptunaPruningCallback(optuna.create_study().ask(), "lost")


def test_the_example_finds_a_better_trial_than_its_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optuna_trials, "TRIALS", 3)
    study = optuna_trials.main()
    values = [trial.value for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    assert study.best_value < values[0] + 1e-12
    assert all(trial.intermediate_values for trial in study.trials)
    assert f"log loss {study.best_value:.4f}" in capsys.readouterr().out
