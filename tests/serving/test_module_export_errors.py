"""What cannot be exported, or is no longer what was exported: named, and nothing written."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from command import Run
from module_cases import Mixed, Scored, export_scored, fill, some_keys
from serving_cases import opened_model
from sparsegroup import HashEmbedding
from sparsegroup.serving import (
    ExportError,
    apply_deltas,
    export,
    export_delta,
    export_trained,
    load_export,
    open_trained,
    read_manifest,
)


class Branching(Scored):
    def finish(self, scores: Tensor) -> Tensor:
        return scores * 2 if scores.sum() > 0 else scores


class Fixed(Scored):
    def finish(self, scores: Tensor) -> Tensor:
        return scores.view(8)


class Random(Scored):
    def finish(self, scores: Tensor) -> Tensor:
        return scores + torch.rand(1)


class Spectral(Scored):
    def finish(self, scores: Tensor) -> Tensor:
        return torch.linalg.svdvals(scores.unsqueeze(1) @ scores.unsqueeze(0))


class Asking(Scored):
    def forward(self, keys: Tensor) -> Tensor:
        return self.layer(self.table.lookup(keys))


class Scaled(HashEmbedding):
    def forward(self, keys: Tensor) -> Tensor:
        return 2 * super().forward(keys)


def diverged(value: float, what: str) -> Scored:
    """A module with numbers that are not finite."""
    model = Scored()
    with torch.no_grad():
        if what == "weight":
            model.layer.weight[0, 2] = value
        elif what == "vector":
            model.table.assign(torch.tensor([3]), torch.full((1, 4), value))
        elif what == "fallback":
            model.table = HashEmbedding(4, fallback=True)
            model.table.fallback.fill_(value)
        else:
            model.register_buffer("mean", torch.full((3,), value))
    return model


NAN, INF = torch.nan, torch.inf
LINE = r"test_module_export_errors.py:\d+, .*scores.sum\(\) > 0"
REFUSED: list[tuple[Callable[[], nn.Module], dict[str, Any], str]] = [
    (lambda: nn.Linear(3, 1), {}, "Linear holds no HashEmbedding: .* name tables that are no submodules"),
    (Branching, {}, rf"Branching: torch.export cannot trace it \(.*{LINE}"),
    (Branching, {"strict": True}, rf"Branching: torch.export cannot trace it \(.*{LINE}"),
    (Fixed, {}, "The example needs two rows or more; `dynamic_shapes` says"),
    (Spectral, {"formats": ["onnx"]}, r"model\.onnx: torch\.onnx cannot convert the program \(.*svd"),
    (Random, {"formats": []}, "output 0 of the export in PyTorch differs from the module's by"),
    (Asking, {}, r"Asking: fails on the example once .* no attribute 'lookup'; at .*errors.py:\d+"),
    (lambda: nn.Sequential(Scaled(3), nn.Linear(3, 1)), {}, "0: Scaled has a `forward` of its own"),
    (Scored, {"tables": {}}, "table: a table of the model that `tables` does not name"),
    (Scored, {"outputs": ["a", "b"]}, "outputs must be 1 names, of .*; got 2"),
    (Scored, {"outputs": ["keys"]}, "'keys' names two of the inputs and outputs"),
    (lambda: diverged(INF, "vector"), {}, "table: the table holds vectors that are not finite: training has diverged"),
    (lambda: diverged(NAN, "weight"), {"formats": []}, "layer.weight: 1 of 4 values are not finite: training has"),
    (lambda: diverged(INF, "weight"), {}, "layer.weight: 1 of 4 values are not finite: training has diverged"),
    (lambda: diverged(NAN, "fallback"), {}, "table: a fallback vector is not finite"),
    (lambda: diverged(INF, "fallback"), {}, "table: a fallback vector is not finite"),
    (lambda: diverged(NAN, "buffer"), {}, "mean: 3 of 3 values are not finite"),
]


@pytest.mark.parametrize(("make", "more", "message"), REFUSED)
def test_what_cannot_be_exported_is_named_and_nothing_written(
    make: Callable[[], nn.Module],
    more: dict[str, Any],
    message: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ExportError, match=message):
        export_scored(make(), tmp_path / "out", **more)
    assert not list(tmp_path.iterdir())
    assert "def forward" not in capfd.readouterr().err  # torch would print the graph


def test_a_size_may_be_fixed_and_a_mask_infinite(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="The example needs two rows or more"):
        export(Scored(), tmp_path / "out", (some_keys(1),))
    export_scored(Fixed(), tmp_path / "out", dynamic_shapes={"keys": None})
    assert read_manifest(tmp_path / "out").signature.inputs[0].shape == (8,)  # type: ignore[union-attr]
    export_scored(diverged(-INF, "buffer"), tmp_path / "masked", formats=[])


def test_arguments_are_checked(tmp_path: Path) -> None:
    model = Scored()
    with pytest.raises(TypeError, match="`export_trained` takes what `open_trained` gives"):
        export(opened_model(), tmp_path / "out")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="args must be a tuple of the arguments by position, got Tensor"):
        export(model, tmp_path / "out", some_keys(3))  # type: ignore[arg-type]
    for formats, given in ((["torch"], "torch"), ("onnx", "onnx")):
        with pytest.raises(ValueError, match=f"formats must be a list of program and onnx, or empty; got '{given}'"):
            export_scored(model, tmp_path / "out", formats=formats)
    with pytest.raises(TypeError, match=r"tables\['a'\] must be a HashEmbedding, got Linear"):
        export_scored(model, tmp_path / "out", tables={"a": model.layer})
    with pytest.raises(ExportError, match="`tables` names a table twice"):
        export_scored(model, tmp_path / "out", tables={"a": model.table, "b": model.table})


def test_nothing_is_written_over_or_left_behind(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = export_scored(Scored(), out, formats=[])
    with pytest.raises(ExportError, match="is not empty; give another folder, or `overwrite`"):
        export_scored(Scored(), out)
    with pytest.raises(ExportError, match="cannot trace"):
        export_scored(Branching(), out, overwrite=True)
    assert read_manifest(out) == first
    assert export_scored(Scored(), out, dtype="int8", formats=[], overwrite=True) == read_manifest(out) != first
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_damage_to_any_file_is_found_and_named(tmp_path: Path) -> None:
    model = nn.Sequential(fill(HashEmbedding(4)), Scored().layer)
    manifest = export_scored(model, tmp_path / "out")
    assert len(manifest.files) == 3
    for number, name in enumerate(manifest.files):
        path, like = tmp_path / "out" / name, model if number % 2 else None
        whole = path.read_bytes()
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:])
        with pytest.raises(ExportError, match=rf"{re.escape(name)}: damaged"):
            load_export(tmp_path / "out", like)
        path.unlink()
        with pytest.raises(ExportError, match=rf"{re.escape(name)}: missing"):
            load_export(tmp_path / "out", like)
        path.write_bytes(whole)
    load_export(tmp_path / "out")


def test_a_module_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_scored(Scored(), out, formats=[])
    with pytest.raises(ExportError, match="holds no program; give `like`, a module of the class Scored"):
        load_export(out)
    with pytest.raises(ExportError, match=r"holds the tables table, `like` has towers\.user, towers\.item"):
        load_export(out, Mixed())
    other = Scored()
    other.layer = nn.Linear(4, 2)
    with pytest.raises(ExportError, match=r"network\.safetensors: does not fit `like` \(.*size mismatch for layer"):
        load_export(out, other)
    other.layer = nn.Linear(4, 1, bias=False)
    with pytest.raises(
        ExportError, match=r"does not fit `like` \(of the weights layer\.bias is in one of the two only\)"
    ):
        load_export(out, other)
    other.table = fill(HashEmbedding(5))
    with pytest.raises(ExportError, match="table has dimension 4, that of `like` 5"):
        load_export(out, other)
    export_trained(opened_model(), tmp_path / "trained")
    with pytest.raises(ExportError, match="leave `like` out"):
        load_export(tmp_path / "trained", Scored())


def test_what_needs_a_log_says_so(tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    export_scored(Scored(), out, formats=[])
    message = "out: an export of Scored, a module with table, has no columns of a log"
    with pytest.raises(ExportError, match=message):
        open_trained(out)
    with pytest.raises(ExportError, match=message):
        export_delta(opened_model(), tmp_path / "delta", out)
    with pytest.raises(ExportError, match=message):
        apply_deltas(out, [], tmp_path / "applied")
    ended = run("inspect", out)
    assert ended.returncode == 2
    assert "load_export" in ended.stderr
    assert "Traceback" not in ended.stderr
