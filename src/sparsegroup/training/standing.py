"""Where a training stands between two batches, on each of the ranks that train together."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from sparsegroup.training.baseline_merge import merged_baseline
from sparsegroup.training.evaluation import PredictionWindow
from sparsegroup.training.trainer_state import RankState, TrainerState, WindowState

if TYPE_CHECKING:
    from sparsegroup.training.trainer import Trainer


def standing_of(trainer: "Trainer") -> dict[str, Any]:
    """Where a training stands, but for model, optimizers and scheduler: numbers and tensors, see `TrainerState`.

    All ranks have to call it; what the first gets is the state of all.
    """
    baseline = trainer.lessons.state_dict()  # waits for what is learnt, which joins the window
    window = trainer.record.window.state()
    if trainer.ranks.is_alone:
        of_ranks: dict[str, Any] = {"window": vars(window), "baseline": baseline}
    else:
        own = (trainer.taken, window, baseline, trainer.dense.size)
        of_ranks = _of_ranks(trainer.ranks.of_all([own], "where they stand"))
    return {
        "samples": trainer.samples,
        "seconds": trainer.seconds,
        "history": trainer.record.history_state(),
        "compiled_for": trainer.dense.size,
        "target": None if trainer.target is None else trainer.target.state_dict(),
        "progress": trainer.progress.as_dict(),
        **of_ranks,
    }


def _of_ranks(found: list[tuple[int, WindowState, Any, int | None]]) -> dict[str, Any]:
    windows = [window for _, window, _, _ in found]
    joined = PredictionWindow.joined(windows, 0.0).state()
    taught = [baseline for _, _, baseline, _ in found if baseline is not None]
    return {
        "window": {**vars(joined), "seconds": windows[0].seconds},
        "baseline": merged_baseline(taught) if taught else None,
        "ranks": [
            {"taken": taken, "window": len(window.labels), "baseline": baseline, "compiled_for": size}
            for taken, window, baseline, size in found
        ],
    }


def stand_at(trainer: "Trainer", state: TrainerState) -> None:
    """Bring a training to where it stood; on as many ranks as then, each goes on with what was its own.

    Where their number has changed, the first takes all of the window, and none has trained on any of its part of the
    epoch: the parts are new ones.

    Raises:
        ValueError: It was one without a target; nothing has changed.
    """
    if trainer.target is not None:
        if state.target is None:
            raise ValueError("target: the state is of a training without one")
        trainer.target.load_state_dict(asdict(state.target))
    trainer.progress = replace(state.progress)
    ranks, samples = trainer.ranks, len(state.window.labels)
    own: RankState | None = state.ranks[ranks.rank] if len(state.ranks) == ranks.count else None
    if own is None:
        first, count = 0, 0 if ranks.rank else samples
        was_alone = ranks.is_alone and not state.ranks
        trainer.taken = trainer.progress.position if was_alone else 0
        trainer.dense.size = state.compiled_for if was_alone else None
    else:
        first, count = sum(one.window for one in state.ranks[: ranks.rank]), own.window
        trainer.taken, trainer.dense.size = own.taken, own.compiled_for
    window = PredictionWindow.from_state(state.window.part(first, first + count), samples)
    trainer.record.go_on(state.history, window)
    trainer.lessons.load_state_dict(state.baseline if own is None else own.baseline)
