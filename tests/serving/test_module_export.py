"""Exports of modules of one's own: every format gives what the module gives; what cannot be exported is named."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import two_towers
from command import Run
from serving_cases import batch_of, opened_model, rounded, sizes_of
from sparsegroup import HashEmbedding, HashEmbeddingBag
from sparsegroup.serving import (
    ExportError,
    ExportManifest,
    apply_deltas,
    export,
    export_delta,
    export_trained,
    load_export,
    open_trained,
    read_export,
    read_manifest,
)
from sparsegroup.serving.frozen import FrozenTable, live_rows
from sparsegroup.serving.onnx import OnnxModel, name_sizes
from sparsegroup.table.lookup.fallback import field_numbers

TABLES = ("towers.user", "towers.item", "tags", "words", "pairs")


def fill(table: HashEmbedding, seed: int = 0) -> HashEmbedding:
    """Give a table 200 rows of keys from all over, of which a fifth are dead."""
    draw = torch.Generator().manual_seed(seed)
    vectors = torch.randn(200, table.dim, generator=draw)
    vectors[torch.rand(200, generator=draw) < 0.2] = 0
    table.assign(known_keys(), vectors)
    if table.fallback is not None:
        table.fallback.data.copy_(torch.randn(table.fallback.shape, generator=draw))
    return table


def known_keys() -> Tensor:
    """The same 200 keys of all fields, always."""
    return torch.randint(-(1 << 63), (1 << 63) - 1, (200,), generator=torch.Generator().manual_seed(5))


def some_keys(*shape: int, seed: int = 1) -> Tensor:
    """Keys that a filled table has, live and dead, and in three of ten cases one that it has not."""
    draw = torch.Generator().manual_seed(seed)
    return known_keys()[torch.randint(0, 200, shape, generator=draw)] + (torch.rand(shape, generator=draw) < 0.3)


class Mixed(nn.Module):
    """Two towers, one of which looks up twice, bags of all three kinds, numbers, and layers that know the mode."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        how: dict[str, Any] = {"fallback": True, "field_bits": 3}
        self.towers = nn.ModuleDict({"user": HashEmbedding(5, **how), "item": HashEmbedding(3)})
        self.tags = HashEmbeddingBag(4, **how)
        self.words = HashEmbeddingBag(2, mode="sum", include_last_offset=True)
        self.pairs = HashEmbeddingBag(3, mode="sum")
        self.norm = nn.BatchNorm1d(23)
        self.network = nn.Sequential(nn.Linear(23, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 1))
        for name in TABLES:
            fill(self.get_submodule(name), seed=seed + len(name))  # type: ignore[arg-type]
        self.norm.running_mean.copy_(torch.randn(23))  # type: ignore[union-attr]

    def forward(
        self,
        user: Tensor,
        friend: Tensor,
        item: Tensor,
        tags: Tensor,
        offsets: Tensor,
        *,
        words: dict[str, Tensor],
        pairs: Tensor,
        price: Tensor,
    ) -> dict[str, Tensor]:
        towers = self.towers
        people = [towers["user"](user), towers["user"](friend), towers["item"](item)]
        bags = [self.tags(tags, offsets), self.words(words["keys"], words["offsets"], words["weights"])]
        x = self.norm(torch.cat([*people, *bags, self.pairs(pairs), price], dim=1))
        return {"click": self.network(x).squeeze(1), "vector": x}


def call_of(rows: int, seed: int = 1) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Arguments of `Mixed`, positional and named."""
    draw = torch.Generator().manual_seed(seed)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), torch.randint(0, 4, (rows,), generator=draw).cumsum(0)])
    many = int(ends[-1])
    weights = torch.rand(many, generator=draw)
    words = {"keys": some_keys(many, seed=seed + 4), "offsets": ends.clone(), "weights": weights}
    args = (*(some_keys(rows, seed=seed + place) for place in range(3)), some_keys(many, seed=seed + 3), ends[:-1])
    return args, {"words": words, "pairs": some_keys(rows, 2, seed=seed + 5), "price": torch.randn(rows, 1)}


def flat(args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    words = kwargs["words"]
    return [*args, words["keys"], words["offsets"], words["weights"], kwargs["pairs"], kwargs["price"]]


class Scored(nn.Module):
    """A table and a layer, and what becomes of the scores."""

    def __init__(self, finish: Callable[[Tensor], Tensor] = lambda scores: scores) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layer, self.finish = fill(HashEmbedding(4)), nn.Linear(4, 1), finish

    def forward(self, keys: Tensor) -> Tensor:
        return self.finish(self.layer(self.table(keys)).squeeze(1))


def export_scored(model: nn.Module, folder: Any, **more: Any) -> Any:
    """`export` with an example of eight keys."""
    return export(model, folder, (some_keys(8),), **more)


def near(found: Any, wanted: Tensor) -> bool:
    return torch.allclose(torch.as_tensor(found), wanted, rtol=1e-5, atol=1e-5)


def check_manifest(manifest: ExportManifest, model: Mixed) -> None:
    """It has what the tables hold and what the model takes."""
    assert tuple(manifest.tables) == TABLES
    for name, one in manifest.tables.items():
        table: Any = model.get_submodule(name)
        assert (one.dim, one.live_rows, one.features_seen) == (table.dim, table.num_live, table.num_seen)
        assert one.pooling == getattr(table, "mode", None)
    assert manifest.feature_rate == manifest.live_rows / manifest.features_seen < 1
    assert manifest.signature is not None
    facts = {one.name: (one.dtype, one.shape) for one in manifest.signature.inputs}
    assert (facts["user"], facts["pairs"]) == (("int64", (None,)), ("int64", (None, 2)))
    assert facts["words_weights"] == ("float32", (None,))
    assert [(one.name, one.shape) for one in manifest.signature.outputs] == [("click", (None,)), ("vector", (None, 23))]
    assert f"{manifest.live_rows:,} of {manifest.features_seen:,} features" in repr(manifest)
    assert manifest.id in repr(manifest)
    assert len(repr(manifest)) < 200


def test_every_format_gives_what_the_module_gives_for_any_batch(tmp_path: Path) -> None:
    model, out = Mixed(), tmp_path / "out"
    model.towers.eval()
    seen, before = model.towers["user"].num_seen, {name: value.clone() for name, value in model.state_dict().items()}
    modes = {name: module.training for name, module in model.named_modules()}
    manifest = export(model, out, *call_of(8), formats=["program", "onnx"], dtype="int8")
    assert {name: module.training for name, module in model.named_modules()} == modes  # the module stays as it is
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.towers["user"].num_seen == seen
    check_manifest(manifest, model)
    assert read_manifest(out) == manifest
    runs, loaded = OnnxModel(out / "model.onnx"), [load_export(out), load_export(out, Mixed(seed=1))]
    again = export(loaded[1], tmp_path / "again", *call_of(8), dtype="int8", formats=[])
    assert (again.content, again.tables["tags"].pooling) == (manifest.content, "mean")
    rounded(model, "int8")
    model.eval()
    for rows in (0, 1, 2, 37):
        args, kwargs = call_of(rows, seed=rows)
        with torch.no_grad():
            wanted = model(*args, **kwargs)
        for one in loaded:
            found = one(*args, **kwargs)
            assert all(near(found[name], wanted[name]) for name in ("click", "vector"))
        click, vector = runs(flat(args, kwargs))
        assert near(click, wanted["click"])
        assert near(vector, wanted["vector"])
    graph = onnx.load(out / "model.onnx")
    assert {node.domain for node in graph.graph.node} == {""}
    assert {one.name: sizes_of(one) for one in graph.graph.output} == {"click": ["batch"], "vector": ["batch", 23]}
    sizes = {one.name: sizes_of(one)[0] for one in graph.graph.input}
    assert {sizes[name] for name in ("user", "friend", "item", "offsets", "pairs", "price")} == {"batch"}
    assert (sizes["tags"], sizes["words_keys"]) == ("tags_size", sizes["words_weights"])
    assert sizes["words_offsets"] == "batch + 1"
    assert str(Path(__file__).parents[2]).encode() not in (out / "model.onnx").read_bytes()


class Padded(nn.Module):
    """Model of a table and bags with padding; keys are small, and 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.single = HashEmbedding(3, padding_idx=0, fallback=True)
        self.means, self.maxima = (HashEmbeddingBag(2, mode=mode, padding_idx=0) for mode in ("mean", "max"))
        nn.init.ones_(self.single.fallback)  # type: ignore[arg-type]
        for table in (self.single, self.means, self.maxima):
            table.assign(torch.arange(1, 6), torch.randn(5, table.dim))

    def forward(self, pairs: Tensor, keys: Tensor, offsets: Tensor) -> Tensor:
        return torch.cat([self.single(pairs).flatten(1), self.means(pairs), self.maxima(keys, offsets)], 1)


def test_padding_and_maxima_are_exported(tmp_path: Path) -> None:
    def call(rows: int) -> tuple[Tensor, Tensor, Tensor]:
        keys = torch.randint(0, 8, (2 * rows,), generator=torch.Generator().manual_seed(rows))
        keys[:2] = 0  # a bag of padding only
        return keys.view(rows, 2), keys, torch.arange(rows) * 2

    model, out = Padded().eval(), tmp_path / "out"
    export(model, out, call(8), formats=["onnx"])
    runs, loaded = OnnxModel(out / "model.onnx"), load_export(out, Padded())
    for rows in (1, 23):
        wanted = model(*call(rows)).detach()
        assert not wanted[0].any()
        assert near(loaded(*call(rows)), wanted)
        assert near(runs(list(call(rows)))[0], wanted)


class Wide(Scored):
    def forward(self, keys: Tensor) -> Tensor:
        return self.layer(self.table(keys).sum(1)).squeeze(1)


def test_open_sizes_have_plain_names(tmp_path: Path) -> None:
    wide = {"keys": {0: torch.export.Dim("rows", min=0), 1: torch.export.Dim("values", min=1)}}
    options = {"formats": ["onnx"], "dynamic_shapes": wide, "inputs": ["user.id"]}
    export(Wide().eval(), tmp_path / "wide", (some_keys(8, 3),), **options)
    graph = onnx.load(tmp_path / "wide" / "model.onnx").graph
    named = {"user.id": ["batch", "user_id_size_1"], "output": ["batch"]}
    assert {one.name: sizes_of(one) for one in (*graph.input, *graph.output)} == named
    given, total = (onnx_ir.Value(name="x", shape=onnx_ir.Shape([size])) for size in ("s3", 1))
    name_sizes(onnx_ir.Graph([given], [total], nodes=[]))  # an output without an open size
    assert (given.shape, total.shape) == (["batch"], [1])


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of `Scored`, to be read only."""
    folder = tmp_path_factory.mktemp("scored") / "out"
    export_scored(Scored(), folder)
    return folder


def test_the_same_module_gives_the_same_bytes_and_another_id_where_it_differs(scored: Path, tmp_path: Path) -> None:
    first = read_manifest(scored)
    second = export_scored(Scored(), tmp_path / "b")
    other = export_scored(Scored(lambda scores: scores.sum(0, keepdim=True)), tmp_path / "c")
    assert (first.id, first.content) == (second.id, second.content)
    assert other.content == first.content
    assert other.id != first.id


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(fill(HashEmbedding(3)), nn.Linear(3, 1))
        self.right = nn.Sequential(self.left[0], nn.Linear(3, 1))
        self.aside = [self.left[0]]

    def forward(self, keys: Tensor) -> Tensor:
        return self.left(keys) + self.right(keys) + self.aside[0](keys).sum(1, keepdim=True)


def test_a_table_in_two_places_is_exported_once_and_stays_one(tmp_path: Path) -> None:
    model = Shared().eval()
    assert list(export_scored(model, tmp_path / "out").tables) == ["left.0"]
    copy, keys = load_export(tmp_path / "out", Shared()), some_keys(30, seed=2)
    assert copy.left[0] is copy.right[0] is copy.aside[0]
    with torch.no_grad():
        assert near(copy(keys), model(keys))
        assert near(load_export(tmp_path / "out")(keys), model(keys))


class Listed(nn.Module):
    """A module whose tables are no submodules."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 1)
        self.both = [fill(HashEmbedding(3)).eval(), fill(HashEmbedding(2)).eval()]

    def forward(self, keys: Tensor) -> Tensor:
        return self.layer(torch.cat([table(keys) for table in self.both], dim=1))

    def named(self) -> dict[str, HashEmbedding]:
        return dict(zip(("first/one", "second"), self.both, strict=True))


def test_tables_that_are_no_submodules_are_named_and_one_that_is_all_keeps_its_dtype(tmp_path: Path) -> None:
    model, other, keys = Listed().eval(), Listed(), some_keys(30, seed=2)
    manifest = export_scored(model, tmp_path / "out", tables=model.named())
    assert set(manifest.files) > {"embeddings-first%2Fone.safetensors", "embeddings-second.safetensors"}
    table = fill(HashEmbedding(3, dtype=torch.float64)).eval()
    assert list(export_scored(table, tmp_path / "table", formats=["program"]).tables) == ["table"]
    with torch.no_grad():
        assert near(load_export(tmp_path / "out", other, other.named())(keys), model(keys))
        for like in (None, HashEmbedding(3, dtype=torch.float64)):
            found = load_export(tmp_path / "table", like)(keys)
            assert found.dtype == torch.float64
            assert near(found, table(keys))


def test_a_trained_models_export_is_loaded_as_what_serves_it(tmp_path: Path) -> None:
    opened = opened_model(numbers=True, lists=True)
    export_trained(opened, tmp_path / "out")
    served = read_export(tmp_path / "out").serving_model()
    arguments = served.arguments(batch_of(opened, 20))
    assert torch.equal(load_export(tmp_path / "out")(*arguments), served(*arguments))
    with pytest.raises(ExportError, match="leave `like` out"):
        load_export(tmp_path / "out", Scored())


@settings(max_examples=40)
@given(
    st.sampled_from([0, 1, 3, 8, 12, 16]),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1).filter(lambda key: key % (1 << 48) < (1 << 48) - 1024)),
)
def test_fallback_vectors_are_those_of_the_live_table_for_any_fields(field_bits: int, keys: list[int]) -> None:
    table = fill(HashEmbedding(2, fallback=True, field_bits=field_bits)).eval()
    frozen = FrozenTable(live_rows(table, "float32"))
    asked = torch.cat([torch.tensor(keys, dtype=torch.int64), known_keys(), known_keys() + 1])
    with torch.no_grad():
        assert torch.equal(frozen(asked), table(asked)), field_numbers(asked, field_bits)
    assert frozen.fallback_by_field is not None
    assert torch.equal(frozen.fallback_by_field, table.fallback)


def test_the_example_is_scored_by_onnxruntime_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_towers.main(tmp_path / "towers", steps=80)
    loss, *tables, difference = capsys.readouterr().out.splitlines()
    assert float(loss.split()[-1]) < 0.5
    assert [line.split(":")[0] for line in tables] == ["users", "items", "tags"]
    assert float(difference.split()[-1]) < 1e-5
    assert read_manifest(tmp_path / "towers").feature_rate < 0.3
    source = Path(two_towers.__file__ or "").read_text()
    score = source[source.index("def score(") : source.index("def main(")]
    assert "torch" not in score.replace("PyTorch", "")


# What cannot be exported, or is no longer what was exported


def branching() -> Scored:
    return Scored(lambda scores: scores * 2 if scores.sum() > 0 else scores)


def fixed() -> Scored:
    return Scored(lambda scores: scores.view(8))


def spectral(scores: Tensor) -> Tensor:
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
    if what == "weight":
        model.layer.weight.data[0, 2] = value
    elif what == "vector":
        model.table.assign(torch.tensor([3]), torch.full((1, 4), value))
    elif what == "fallback":
        model.table = HashEmbedding(4, fallback=True)
        model.table.fallback.data.fill_(value)  # type: ignore[union-attr]
    else:
        model.register_buffer("mean", torch.full((3,), value))
    return model


NAN, INF = torch.nan, torch.inf
LINE = r"test_module_export.py:\d+, .*scores.sum\(\) > 0"
REFUSED: list[tuple[Callable[[], nn.Module], dict[str, Any], str]] = [
    (lambda: nn.Linear(3, 1), {}, "Linear holds no HashEmbedding: .* name tables that are no submodules"),
    (branching, {}, rf"Scored: torch.export cannot trace it \(.*{LINE}"),
    (branching, {"strict": True}, rf"Scored: torch.export cannot trace it \(.*{LINE}"),
    (fixed, {}, "The example needs two rows or more; `dynamic_shapes` says"),
    (lambda: Scored(spectral), {"formats": ["onnx"]}, r"model\.onnx: torch\.onnx cannot convert the program \(.*svd"),
    (
        lambda: Scored(lambda scores: scores + torch.rand(1)),
        {"formats": []},
        "output 0 of the export in PyTorch differs from the module's by",
    ),
    (Asking, {}, r"Asking: fails on the example once .* no attribute 'lookup'; at .*export.py:\d+"),
    (lambda: nn.Sequential(Scaled(3), nn.Linear(3, 1)), {}, "0: Scaled has a `forward` of its own"),
    (Scored, {"tables": {}}, "table: a table of the model that `tables` does not name"),
    (Scored, {"outputs": ["a", "b"]}, "outputs must be 1 names, of .*; got 2"),
    (Scored, {"outputs": ["keys"]}, "'keys' names two of the inputs and outputs"),
    (lambda: diverged(INF, "vector"), {}, "table: the table holds vectors that are not finite: training has diverged"),
    (lambda: diverged(INF, "weight"), {"formats": []}, "layer.weight: 1 of 4 values are not finite: training has"),
    (lambda: diverged(NAN, "fallback"), {}, "table: a fallback vector is not finite"),
    (lambda: diverged(NAN, "buffer"), {}, "mean: 3 of 3 values are not finite"),
]


@pytest.mark.parametrize(("make", "more", "message"), REFUSED)
def test_what_cannot_be_exported_is_named_and_nothing_written(
    make: Callable[[], nn.Module], more: Any, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExportError, match=message):
        export_scored(make(), tmp_path / "out", **more)
    assert not list(tmp_path.iterdir())
    assert "def forward" not in capfd.readouterr().err  # torch would print the graph


def test_a_size_may_be_fixed_and_a_mask_infinite(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="The example needs two rows or more"):
        export(Scored(), tmp_path / "out", (some_keys(1),))
    export_scored(fixed(), tmp_path / "out", dynamic_shapes={"keys": None})
    assert read_manifest(tmp_path / "out").signature.inputs[0].shape == (8,)  # type: ignore[union-attr]
    export_scored(diverged(-INF, "buffer"), tmp_path / "masked", formats=[])


def test_arguments_are_checked(tmp_path: Path) -> None:
    model, out = Scored(), tmp_path / "out"
    with pytest.raises(TypeError, match="`export_trained` takes what `open_trained` gives"):
        export(opened_model(), out)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="args must be a tuple of the arguments by position, got Tensor"):
        export(model, out, some_keys(3))  # type: ignore[arg-type]
    for formats, name in ((["torch"], "torch"), ("onnx", "onnx")):
        with pytest.raises(ValueError, match=f"formats must be a list of program and onnx, or empty; got '{name}'"):
            export_scored(model, out, formats=formats)
    with pytest.raises(TypeError, match=r"tables\['a'\] must be a HashEmbedding, got Linear"):
        export_scored(model, out, tables={"a": model.layer})
    with pytest.raises(ExportError, match="`tables` names a table twice"):
        export_scored(model, out, tables={"a": model.table, "b": model.table})


def test_damage_to_any_file_is_found_and_named(scored: Path, tmp_path: Path) -> None:
    model, out = Scored(), shutil.copytree(scored, tmp_path / "out")
    manifest = read_manifest(out)
    assert len(manifest.files) == 3
    for number, name in enumerate(manifest.files):
        whole, like = (out / name).read_bytes(), model if number % 2 else None
        for content, message in ((whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:], "damaged"), (None, "missing")):
            (out / name).unlink() if content is None else (out / name).write_bytes(content)
            with pytest.raises(ExportError, match=rf"{re.escape(name)}: {message}"):
                load_export(out, like)
        (out / name).write_bytes(whole)
    with pytest.raises(ExportError, match="is not empty; give another folder, or `overwrite`"):
        export_scored(model, out)
    with pytest.raises(ExportError, match="cannot trace"):
        export_scored(branching(), out, overwrite=True)
    assert read_manifest(out) == manifest
    load_export(out)


def other(layer: nn.Module, dim: int = 4) -> Scored:
    model = Scored()
    model.layer, model.table = layer, fill(HashEmbedding(dim))  # type: ignore[assignment]
    return model


def test_a_module_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    export_scored(Scored(), tmp_path / "out", formats=[])
    for like, message in (
        (None, "holds no program; give `like`, a module of the class Scored"),
        (Mixed(), r"holds the tables table, `like` has towers\.user, towers\.item"),
        (other(nn.Linear(4, 2)), r"network\.safetensors: does not fit `like` \(.*size mismatch for layer"),
        (other(nn.Linear(4, 1, bias=False)), r"like` \(of the weights layer\.bias is in one of the two only\)"),
        (other(nn.Linear(4, 1), dim=5), "table has dimension 4, that of `like` 5"),
    ):
        with pytest.raises(ExportError, match=message):
            load_export(tmp_path / "out", like)


def test_what_needs_a_log_says_so(scored: Path, tmp_path: Path, run: Run) -> None:
    for does in (
        lambda: open_trained(scored),
        lambda: export_delta(opened_model(), tmp_path / "delta", scored),
        lambda: apply_deltas(scored, [], tmp_path / "applied"),
    ):
        with pytest.raises(ExportError, match="out: an export of Scored, a module with table, has no columns of a log"):
            does()
    ended = run("inspect", scored)
    assert ended.returncode == 2
    assert "load_export" in ended.stderr
    assert "Traceback" not in ended.stderr
