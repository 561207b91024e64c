"""The mean of a network's weights over the last steps of an epoch, and the calibration that ends a training."""

from typing import Any

import pytest
import torch

from sparsegroup import GroupAdam, HashEmbedding
from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.models import MLP
from sparsegroup.training import AveragedNetwork, Callback, Config, Trainer

STEPS = 10


class Weights(Callback):
    """Keeps the network's weights after each step."""

    def __init__(self) -> None:
        self.found: list[list[torch.Tensor]] = []

    def on_batch(self, trainer: Trainer, trained: Any) -> None:
        self.found.append([one.detach().clone() for one in trainer.network.parameters()])


def trainer_of(*callbacks: Callback, l21: float = 0.0) -> Trainer:
    torch.manual_seed(0)
    table, network = HashEmbedding(3), MLP(fields=3, dim=3, hidden=(4,))
    groups = [{"params": table.parameters()}, {"params": network.parameters(), "l21": l21, "groups": "rows"}]
    return Trainer(table, network, GroupAdam(groups, lr=0.1), callbacks=callbacks)


def batches(count: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randint(50, (32, 3), generator=generator), torch.randint(2, (32,), generator=generator).float())
        for _ in range(count)
    ]


def test_weights_are_the_mean_over_the_last_steps_of_each_epoch() -> None:
    before, after = Weights(), Weights()
    trainer = trainer_of(before, AveragedNetwork(STEPS, 0.3), after)
    trainer.fit(batches(), epochs=2)
    for end in (STEPS, 2 * STEPS):
        for place, weight in enumerate(after.found[end - 1]):
            torch.testing.assert_close(weight, torch.stack([before.found[end - n][place] for n in (1, 2, 3)]).mean(0))
    assert not torch.equal(after.found[-1][0], before.found[-1][0])
    for step in range(STEPS - 1):  # nothing else is changed
        assert all(map(torch.equal, before.found[step], after.found[step]))


def test_weights_that_a_penalty_has_set_to_zero_stay_there() -> None:
    before, after = Weights(), Weights()
    trainer_of(before, AveragedNetwork(STEPS, 0.5), after, l21=0.004).fit(batches())
    zero = before.found[-1][0] == 0
    assert zero.any()
    assert not zero.all()
    assert torch.equal(after.found[-1][0] == 0, zero)


@pytest.mark.parametrize("cut", [3, STEPS - 2])
def test_a_resumed_training_has_the_same_mean(cut: int) -> None:
    class Stop(Callback):
        def on_batch(self, trainer: Trainer, trained: Any) -> None:
            if trainer.progress.steps == cut:
                trainer.stop()

    earlier, later = AveragedNetwork(STEPS, 0.5), AveragedNetwork(STEPS, 0.5)
    whole, resumed = trainer_of(AveragedNetwork(STEPS, 0.5)), trainer_of(earlier, Stop())
    whole.fit(batches())
    resumed.fit(batches())
    state = earlier.state_dict()
    assert (state is None) == (cut == 3)
    if state is not None:
        later.load_state_dict(resumed, [state])
    resumed.callbacks = [later]
    resumed.fit(batches()[cut:])
    for one, other in zip(whole.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_state_of_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match="means: are not of the network's weights"):
        AveragedNetwork(STEPS).load_state_dict(trainer_of(), [{"count": 1, "means": [torch.zeros(2)]}])


def test_arguments_out_of_range_are_refused() -> None:
    for steps, share in ((0, 0.1), (5, 0.0), (5, 1.5)):
        with pytest.raises(ValueError, match=f"got {steps} and {share}"):
            AveragedNetwork(steps, share)


def test_a_short_log_ends_calibrated_on_its_own_rows() -> None:
    log = synthetic_log(SyntheticConfig(rows=6_000), seed=0)
    calibrations = {}
    for recalibrate in (None, False):
        config = Config.of(recalibrate=recalibrate, selection="never").resolved_for(log)
        assert config.training.recalibrate == (recalibrate is None)
        model, optimizer = config.build(log)
        trainer = config.trainer(model, optimizer, config.training.plan(log.train_rows))
        trainer.fit_plan(config.training.plan(log.train_rows), log)
        calibrations[recalibrate] = trainer.evaluate(log.batches(0, log.train_rows, 4_096)).calibration
    assert calibrations[None] == pytest.approx(1, abs=1e-3)
    assert calibrations[False] != pytest.approx(1, abs=1e-3)


def test_a_log_in_blocks_and_a_model_with_pairs_are_not_recalibrated_by_themselves() -> None:
    log = synthetic_log(SyntheticConfig(rows=1_000), seed=0)
    pair = "*".join(log.fields[:2])
    for given in ({"shuffle_buffer": 100}, {"pairs": (pair,)}):
        assert not Config.of(**given).resolved_for(log).training.recalibrate
        assert Config.of(**given, recalibrate=True).resolved_for(log).training.recalibrate
    config = Config.of().resolved_for(log)
    assert config.training.recalibrate
    chosen = config.decided({"model.pairs": (pair,)})  # as trials do
    assert not chosen.resolved_again_for(log).training.recalibrate
