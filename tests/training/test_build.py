"""How a training begins and ends: the network's start, learning rates, the mean of weights, calibration."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch

from following import Each
from plain_settings import plain
from sparsegroup import GroupAdam, HashEmbedding
from sparsegroup.data import SyntheticConfig, open_log, synthetic_log
from sparsegroup.data.log import Log
from sparsegroup.models import MLP
from sparsegroup.training import AveragedNetwork, Callback, Config, Trainer
from sparsegroup.training.build import SAMPLE_ROWS, ModelConfig, rate_factor, start_network
from sparsegroup.training.model import NETWORKS

STEPS = 10


def log_of(path: Path, labels: list[int], weights: list[float] | None = None, test_fraction: float = 0) -> Log:
    given = weights or [1.0] * len(labels)
    rows = [f"{label},c{row % 3},{row},{weight}" for row, (label, weight) in enumerate(zip(labels, given, strict=True))]
    path.write_text("\n".join(["label,color,size,weight", *rows]))
    schema = f"label: label\ncategorical: [color]\nnumeric: [size]\ntest_fraction: {test_fraction}\n"
    path.with_suffix(".yaml").write_text(schema + ("weight: weight\n" if weights else ""))
    return open_log(path, schema=path.with_suffix(".yaml"))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_logits_start_at_the_base_rate(tmp_path: Path, name: str) -> None:
    log = log_of(tmp_path / "log.csv", [1] * 30 + [0] * 70)
    config = ModelConfig.model_validate({"name": name, "standardize": True, "number_buckets": 4})
    network = config.network(log.schema).eval()
    embeddings, numbers = torch.zeros(5, 1, config.vector_dim), torch.full((5, 1), torch.nan)
    bias = next(module.logit_bias for module in network.modules() if hasattr(module, "logit_bias"))
    start_network(network, log, base_rate=False)
    initial, before = bias.item(), network(embeddings, numbers).detach()
    start_network(network, log, base_rate=True)
    assert bias.item() == pytest.approx(math.log(30.5 / 70.5), rel=1e-6)
    moved = network(embeddings, numbers).detach() - before
    assert moved.tolist() == pytest.approx([bias.item() - initial] * 5, abs=1e-5)


@pytest.mark.parametrize(
    ("labels", "weights", "test_fraction", "odds"),
    [
        ([1, 0], [3.0, 1.0], 0, 3.5 / 1.5),
        ([0] * 4, None, 0, 0.5 / 4.5),  # one class is no infinity
        ([1], [0.0], 0, 1.0),
        ([0] * 90 + [1] * 10, None, 0.1, 0.5 / 90.5),  # test rows do not count
    ],
)
def test_the_base_rate_is_that_of_training_rows_by_their_weights(
    tmp_path: Path, labels: list[int], weights: list[float] | None, test_fraction: float, odds: float
) -> None:
    log = log_of(tmp_path / "log.csv", labels, weights, test_fraction)
    assert log.train_rows < SAMPLE_ROWS
    network = ModelConfig(name="mlp", standardize=False, number_buckets=0).network(log.schema)
    start_network(network, log, base_rate=True)
    assert network.output.bias.item() == pytest.approx(math.log(odds), rel=1e-6)


@pytest.mark.parametrize("warmup", [0.0, 0.3])
@pytest.mark.parametrize("steps", [1, 7, 100])
def test_the_factors_of_rates_are_those_of_the_formula(steps: int, warmup: float) -> None:
    rising = math.ceil(warmup * steps)
    constant, linear, cosine = (partial(rate_factor, kind, steps, warmup) for kind in ("constant", "linear", "cosine"))
    for step in range(steps):
        if step < rising:
            assert constant(step) == linear(step) == cosine(step) == (step + 1) / rising
            continue
        along = (step - rising) / (steps - rising)
        assert constant(step) == 1
        assert linear(step) == pytest.approx(1 - along)
        assert cosine(step) == pytest.approx(math.cos(math.pi * along / 2) ** 2)
    assert all(schedule(step) > 0 for schedule in (linear, cosine) for step in (0, steps - 1, steps, 10 * steps))


def test_table_and_network_have_rates_of_their_own_that_fall_together() -> None:
    log = synthetic_log(SyntheticConfig(rows=1_000, cardinalities=(10, 100)), seed=4)
    config = plain(lr=0.1, network_lr=0.02, schedule="linear", warmup=0.2, epochs=2, batch_size=90, dim=2)
    model, optimizer = config.build(log)
    plan = config.training.plan(log.train_rows)
    assert plan.steps == 20
    rates: list[tuple[float, ...]] = []
    note = Each(batch=lambda _: rates.append(tuple(group["lr"] for group in optimizer.param_groups)))
    trainer = config.trainer(model, optimizer, plan, [note])
    begun = tuple(group["lr"] for group in optimizer.param_groups)
    trainer.fit(**plan.arguments(log))
    schedule = partial(rate_factor, "linear", 20, 0.2)
    expected = [(0.1 * schedule(step), 0.02 * schedule(step)) for step in range(21)]
    assert [begun, *rates] == [pytest.approx(pair) for pair in expected]
    model, optimizer = plain().build(log)
    assert plain().trainer(model, optimizer, plain().training.plan(900)).scheduler is None


def kept(found: list[list[torch.Tensor]]) -> Callback:
    """Keeps the network's weights after each step."""
    return Each(batch=lambda trainer: found.append([one.detach().clone() for one in trainer.network.parameters()]))


def trainer_of(*callbacks: Callback, l21: float = 0.0) -> Trainer:
    torch.manual_seed(0)
    table, network = HashEmbedding(3), MLP(fields=3, dim=3, hidden=(4,))
    groups = [{"params": table.parameters()}, {"params": network.parameters(), "l21": l21, "groups": "rows"}]
    return Trainer(table, network, GroupAdam(groups, lr=0.1), callbacks=callbacks)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randint(50, (32, 3), generator=generator), torch.randint(2, (32,), generator=generator).float())
        for _ in range(STEPS)
    ]


def test_weights_are_the_mean_over_the_last_steps_of_each_epoch() -> None:
    before, after = list[list[torch.Tensor]](), list[list[torch.Tensor]]()
    trainer_of(kept(before), AveragedNetwork(STEPS, 0.3), kept(after)).fit(batches(), epochs=2)
    for end in (STEPS, 2 * STEPS):
        for place, weight in enumerate(after[end - 1]):
            torch.testing.assert_close(weight, torch.stack([before[end - n][place] for n in (1, 2, 3)]).mean(0))
    assert not torch.equal(after[-1][0], before[-1][0])
    for step in range(STEPS - 1):  # nothing else is changed
        assert all(map(torch.equal, before[step], after[step]))


def test_weights_that_a_penalty_has_set_to_zero_stay_there() -> None:
    before, after = list[list[torch.Tensor]](), list[list[torch.Tensor]]()
    trainer_of(kept(before), AveragedNetwork(STEPS, 1.0), kept(after), l21=0.004).fit(batches())
    zero = before[-1][0] == 0
    assert zero.any()
    assert not zero.all()
    assert torch.equal(after[-1][0] == 0, zero)


def test_what_cannot_be_a_mean_is_refused() -> None:
    with pytest.raises(ValueError, match="means: are not of the network's weights"):
        AveragedNetwork(STEPS).load_state_dict(trainer_of(), [{"count": 1, "means": [torch.zeros(2)]}])
    for steps, share in ((0, 0.1), (5, 0.0), (5, 1.5)):
        with pytest.raises(ValueError, match=f"got {steps} and {share}"):
            AveragedNetwork(steps, share)


def test_a_short_log_ends_calibrated_but_not_in_blocks_or_with_pairs() -> None:
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
    pair = "*".join(log.fields[:2])
    for given in ({"shuffle_buffer": 100}, {"pairs": (pair,)}):
        assert not Config.of(**given).resolved_for(log).training.recalibrate
        assert Config.of(**given, recalibrate=True).resolved_for(log).training.recalibrate
    chosen = Config.of().resolved_for(log).decided({"model.pairs": (pair,)})  # as trials do
    assert not chosen.resolved_again_for(log).training.recalibrate
