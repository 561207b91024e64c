"""What a network is told of a log before training begins."""

import math
from pathlib import Path

import pytest
import torch

from sparsegroup.data import open_log
from sparsegroup.training.build import SAMPLE_ROWS, ModelConfig, start_network
from sparsegroup.training.model import NETWORKS


def log_of(path: Path, labels: list[int], weights: list[float] | None = None) -> Path:
    given = weights or [1.0] * len(labels)
    rows = [f"{label},c{row % 3},{row},{weight}" for row, (label, weight) in enumerate(zip(labels, given, strict=True))]
    path.write_text("\n".join(["label,color,size,weight", *rows]))
    schema = "label: label\ncategorical: [color]\nnumeric: [size]\ntest_fraction: 0\n"
    path.with_suffix(".yaml").write_text(schema + ("weight: weight\n" if weights else ""))
    return path


@pytest.mark.parametrize("name", NETWORKS)
def test_the_logits_start_at_the_base_rate(tmp_path: Path, name: str) -> None:
    path = log_of(tmp_path / "log.csv", [1] * 30 + [0] * 70)
    log = open_log(path, schema=path.with_suffix(".yaml"))
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


def test_rows_count_as_their_weights_say_and_one_class_is_no_infinity(tmp_path: Path) -> None:
    for labels, weights, odds in (([1, 0], [3.0, 1.0], 3.5 / 1.5), ([0] * 4, None, 0.5 / 4.5), ([1], [0.0], 1.0)):
        path = log_of(tmp_path / "log.csv", labels, weights)
        log = open_log(path, schema=path.with_suffix(".yaml"))
        network = ModelConfig(name="mlp", standardize=False, number_buckets=0).network(log.schema)
        start_network(network, log, base_rate=True)
        assert network.output.bias.item() == pytest.approx(math.log(odds), rel=1e-6)


def test_only_training_rows_are_looked_at(tmp_path: Path) -> None:
    path = log_of(tmp_path / "log.csv", [0] * 90 + [1] * 10)
    path.with_suffix(".yaml").write_text("label: label\ncategorical: [color]\ntest_fraction: 0.1\n")
    log = open_log(path, schema=path.with_suffix(".yaml"))
    assert log.train_rows == 90 < SAMPLE_ROWS
    network = ModelConfig(name="mlp", standardize=False, number_buckets=0).network(log.schema)
    start_network(network, log, base_rate=True)
    assert network.output.bias.item() == pytest.approx(math.log(0.5 / 90.5), rel=1e-6)
