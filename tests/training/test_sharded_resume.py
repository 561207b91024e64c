"""A run of two ranks that is cut off anywhere and resumed ends with the bits of an undisturbed one."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command import call
from distributed_cases import Ranks
from kill_runs import differences
from rank_run_cases import EPOCHS, STEPS, VARIANTS, cut_off, log_of, logits_of, outcome, trained, write_log
from sparsegroup.serving import open_trained


class Undisturbed:
    """Runs that nothing has disturbed, of each of the variants of settings."""

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        self.folder, self.ranks = folder, ranks
        write_log(folder)
        self.answers: dict[str, list[dict[str, Any]]] = {}

    def outcome(self, variant: str) -> dict[str, Any]:
        if variant not in self.answers:
            self.answers[variant] = self.ranks.call(trained, self.folder, variant, VARIANTS[variant], [])
        return outcome(self.folder / variant)

    def check(self, variant: str, cuts: list[tuple[str, int]]) -> None:
        expected = self.outcome(variant)
        shutil.rmtree(self.folder / "cut", ignore_errors=True)
        answers = self.ranks.call(trained, self.folder, "cut", VARIANTS[variant], cuts)
        assert not differences(expected, outcome(self.folder / "cut")), cuts
        for answer in answers:
            assert torch.equal(answer["logits"], answers[0]["logits"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, ranks: Ranks) -> Undisturbed:
    return Undisturbed(tmp_path_factory.mktemp("runs"), ranks)


def test_all_ranks_have_one_model_and_it_is_what_is_exported(undisturbed: Undisturbed) -> None:
    undisturbed.outcome("as above")
    one, two = undisturbed.answers["as above"]
    for layer in ("NumberEncoder", "Dice"):
        assert all(torch.equal(value, two[layer][name]) for name, value in one[layer].items())
    assert torch.equal(one["logits"], two["logits"])
    log, folder = log_of(undisturbed.folder), undisturbed.folder
    train = next(log.batches(0, log.train_rows, log.train_rows)).numbers.double().numpy()
    epoch = train[: len(train) - round(0.1 * len(train))]
    rows = np.concatenate([train, *[epoch] * EPOCHS])[:, 1]  # the sample, and what is trained on
    rows = rows[~np.isnan(rows)]
    encoder = one["NumberEncoder"]
    assert encoder["count"][1] == len(rows)
    assert encoder["mean"][1].item() == pytest.approx(rows.mean(), rel=1e-13)
    assert (encoder["m2"] / encoder["count"])[1].item() == pytest.approx(rows.var(), rel=1e-12)
    with pytest.MonkeyPatch.context() as patch:
        assert call(patch, "export", folder / "as above", folder / "export", "--no-onnx") == 0
    for place in ("as above", "export"):
        logits = logits_of(open_trained(folder / place).model, log)
        torch.testing.assert_close(logits, one["logits"], rtol=1e-5, atol=1e-6)


def test_cut_off_and_resumed(undisturbed: Undisturbed) -> None:
    """Before the first checkpoint, in a save, in the second epoch, and in the last validation."""
    undisturbed.check("as above", [("step", 4), ("save", 2), ("batch", STEPS), ("validation", 1)])


def test_one_process_resumes_with_the_statistics_of_all(undisturbed: Undisturbed, ranks: Ranks) -> None:
    folder, two = undisturbed.folder, undisturbed.outcome("as above")["summary.json"]
    shutil.rmtree(folder / "cut", ignore_errors=True)
    ranks.call(cut_off, folder, "cut", VARIANTS["as above"], [("batch", STEPS + 4)])
    one = trained(folder, "cut", VARIANTS["as above"], [])
    for name, value in undisturbed.answers["as above"][0]["NumberEncoder"].items():
        if name != "embedding":  # the remaining rows are in other batches, so that others are beyond the reach
            torch.testing.assert_close(one["NumberEncoder"][name], value, rtol=0.01, atol=0.01)
    summary = outcome(folder / "cut")["summary.json"]
    assert summary["samples"] == two["samples"]
    assert summary["test"]["log_loss"] == pytest.approx(two["test"]["log_loss"], abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_cut_off_anywhere(undisturbed: Undisturbed, variant: str) -> None:
    last = EPOCHS * STEPS
    for place, moments in (
        ("step", (1, 6, STEPS + 1, last)),
        ("batch", (1, 5, 9, STEPS, STEPS + 4, last)),
        ("save", (1, 2, 3, 4)),
        ("checkpoint", (1, 2, 4)),
        ("validation", (1, 2)),
    ):
        for at in moments:
            undisturbed.check(variant, [(place, at)])
    undisturbed.check(variant, [("batch", 3), ("save", 1), ("step", 7), ("checkpoint", 1), ("batch", 2)])
