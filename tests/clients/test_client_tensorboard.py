"""TensorBoard: the example's points are those of its history."""

from pathlib import Path

import pytest

import tensorboard_run


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_example_shows_the_points_of_its_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trainer = tensorboard_run.main(str(tmp_path / "run"))
    events = accumulator.EventAccumulator(str(tmp_path / "run"), size_guidance={"scalars": 0})
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("progressive/log_loss")]
    assert found == [(point.samples, pytest.approx(point.log_loss)) for point in trainer.history]
    assert len(found) > 3
    assert "auc" in capsys.readouterr().out
