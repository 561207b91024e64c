"""Networks by name through the real command line."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from cli_cases import click_log
from command import Run
from sparsegroup.kernels.gpu import runtime
from sparsegroup.models import XDeepFM
from sparsegroup.serving import open_trained, read_manifest
from sparsegroup.training import load_model


def test_a_network_with_options_is_trained_and_exported(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    chosen = ("--model", "xdeepfm", "--dim", 5, "--set", "model.options={cin: [6]}")
    assert run("train", log, *chosen, "--lr", 0.05, "--l21", 1e-4, "--out", "run").returncode == 0
    done = run("export", "run", "out", "--test", log, "--program")
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(tmp_path / "out")
    assert manifest.test is not None
    assert manifest.test.scores["onnx"].auc > 0.9
    network = open_trained("out").model.network
    assert isinstance(network, XDeepFM)
    assert [len(weight) for weight in network.cin.weights] == [6]


def test_what_a_network_cannot_have_is_one_line(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv", 500)
    for arguments, said in (
        (("--model", "lr", "--dim", 4), "LR has one weight per feature: dim must be 1, got 4"),
        (("--model", "fm", "--set", "model.hidden=[4]"), "FM has no hidden layers: leave hidden out"),
        (("--set", "model.options={rank: 2}"), "DCN has no option 'rank'; it has cross_layers"),
    ):
        done = run("train", log, *arguments, "--out", "run")
        assert done.returncode == 2, arguments
        assert said in done.stderr
        assert done.stderr.count("error: ") == 1
    assert run("train", log, "--out", "run").returncode == 0
    other = run("train", log, "--continue", "run", "--set", "model.options={cross_layers: 3}", "--out", "next")
    assert "model.options cannot change to {'cross_layers': 3}" in other.stderr


def test_training_on_a_device_is_training_on_the_host(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device` in Triton's interpreter, whose tables have their rows on a device; and missing devices."""
    pytest.importorskip("triton")
    monkeypatch.setattr("sparsegroup.kernels.gpu.launch.ROW_TILE", 4096)
    arguments = ("train", "--rows", 100, "--batch-size", 64, "--model", "mlp", "--selection", "never", "--no-baseline")
    rows = {}
    for name, place in (("host", nullcontext()), ("device", runtime.rehearsal())):
        with place, np.errstate(all="ignore"):
            assert run(*arguments, "--out", name).returncode == 0
        ((keys, vectors),) = load_model(name).table.items()
        rows[name] = keys, vectors
    assert torch.equal(rows["host"][0], rows["device"][0])
    torch.testing.assert_close(rows["device"][1], rows["host"][1], rtol=1e-4, atol=1e-6)
    for device, said in (("gpu", "training.device: must be cpu, cuda or cuda:N, got 'gpu'"), ("cuda", "finds no GPU")):
        if device == "gpu" or not torch.cuda.is_available():
            done = run(*arguments, "--device", device, "--out", "none")
            assert done.returncode == 2
            assert said in done.stderr
