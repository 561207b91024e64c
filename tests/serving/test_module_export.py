"""Exports of modules of one's own: in every format they give what the module gives, for any batch."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import two_towers
from module_cases import TABLES, Mixed, Scored, call_of, expected, export_scored, fill, keys_from, some_keys
from serving_cases import batch_of, opened_model, sizes_of
from sparsegroup import HashEmbedding, HashEmbeddingBag
from sparsegroup.serving import ExportManifest, export, export_trained, load_export, read_export, read_manifest
from sparsegroup.serving.frozen import FrozenTable, live_rows
from sparsegroup.serving.onnx import OnnxModel
from sparsegroup.table.lookup.fallback import field_numbers


def flat(args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    words = kwargs["words"]
    return [*args, words["keys"], words["offsets"], words["weights"], kwargs["pairs"], kwargs["price"]]


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
    assert facts["user"] == ("int64", (None,))
    assert facts["pairs"] == ("int64", (None, 2))
    assert facts["words_weights"] == ("float32", (None,))
    assert [(one.name, one.shape) for one in manifest.signature.outputs] == [("click", (None,)), ("vector", (None, 23))]


def test_every_format_gives_what_the_module_gives_for_any_batch(tmp_path: Path) -> None:
    options: dict[str, Any] = {"fallback": True, "field_bits": 3}
    model = Mixed(**options)
    model.towers.eval()
    seen, before = model.towers["user"].num_seen, {name: value.clone() for name, value in model.state_dict().items()}
    modes = {name: module.training for name, module in model.named_modules()}
    manifest = export(model, tmp_path / "out", *call_of(8), formats=["program", "onnx"], dtype="int8")
    assert {name: module.training for name, module in model.named_modules()} == modes  # the module stays as it is
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.towers["user"].num_seen == seen
    check_manifest(manifest, model)
    assert f"{manifest.live_rows:,} of {manifest.features_seen:,} features" in repr(manifest)
    assert manifest.id in repr(manifest)
    assert len(repr(manifest)) < 200
    assert read_manifest(tmp_path / "out") == manifest
    export(model, tmp_path / "whole", *call_of(8), formats=[])
    again = export(
        load_export(tmp_path / "whole", Mixed(**options, seed=1)),
        tmp_path / "again",
        *call_of(8),
        dtype="int8",
        formats=[],
    )
    assert (again.content, again.tables["tags"].pooling) == (
        manifest.content,
        "mean",
    )  # from an export as from the model
    program, runs = load_export(tmp_path / "out"), OnnxModel(tmp_path / "out" / "model.onnx")
    copy = load_export(tmp_path / "out", Mixed(**options, seed=1))
    for rows in (0, 1, 2, 37):
        args, kwargs = call_of(rows, seed=rows)
        wanted = expected(model, args, kwargs, "int8")
        for one in (program, copy):
            found = one(*args, **kwargs)
            assert all(near(found[name], wanted[name]) for name in ("click", "vector"))
        click, vector = runs(flat(args, kwargs))
        assert near(click, wanted["click"])
        assert near(vector, wanted["vector"])
    graph = onnx.load(tmp_path / "out" / "model.onnx")
    assert {node.domain for node in graph.graph.node} == {""}
    assert {one.name: sizes_of(one) for one in graph.graph.output} == {"click": ["batch"], "vector": ["batch", 23]}
    sizes = {one.name: sizes_of(one)[0] for one in graph.graph.input}
    assert {sizes[name] for name in ("user", "friend", "item", "offsets", "pairs", "price")} == {"batch"}
    assert (sizes["tags"], sizes["words_keys"]) == ("tags_size", sizes["words_weights"])
    assert sizes["words_offsets"] == "batch + 1"
    assert str(Path(__file__).parents[2]).encode() not in (tmp_path / "out" / "model.onnx").read_bytes()


def test_a_size_that_no_output_has_is_the_batch_of_the_inputs(tmp_path: Path) -> None:
    class Total(Scored):
        def finish(self, scores: Tensor) -> Tensor:
            return scores.sum(0, keepdim=True)

    export_scored(Total().eval(), tmp_path / "out", formats=["onnx"], inputs=["user.id"])
    graph = onnx.load(tmp_path / "out" / "model.onnx").graph
    assert {one.name: sizes_of(one) for one in (*graph.input, *graph.output)} == {"user.id": ["batch"], "output": [1]}


def test_several_open_sizes_of_an_input_have_names_of_their_own(tmp_path: Path) -> None:
    class Wide(Scored):
        def forward(self, keys: Tensor) -> Tensor:
            return self.layer(self.table(keys).sum(1)).squeeze(1)

    shapes = {"keys": {0: torch.export.Dim("rows", min=0), 1: torch.export.Dim("values", min=1)}}
    keys = some_keys(8, 3)
    export(Wide().eval(), tmp_path / "out", (keys,), formats=["onnx"], dynamic_shapes=shapes)
    graph = onnx.load(tmp_path / "out" / "model.onnx").graph
    assert [sizes_of(one) for one in (*graph.input, *graph.output)] == [["batch", "keys_size_1"], ["batch"]]


def test_the_same_module_gives_the_same_bytes_and_another_id_where_it_differs(tmp_path: Path) -> None:
    class Doubled(Scored):
        def finish(self, scores: Tensor) -> Tensor:
            return 2 * scores

    first, second, other = (
        export_scored(model, tmp_path / name) for model, name in ((Scored(), "a"), (Scored(), "b"), (Doubled(), "c"))
    )
    assert (first.id, first.content) == (second.id, second.content)
    assert other.content == first.content
    assert other.id != first.id


def test_a_table_in_two_places_is_exported_once_and_stays_one(tmp_path: Path) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Sequential(fill(HashEmbedding(3)), nn.Linear(3, 1))
            self.right = nn.Sequential(self.left[0], nn.Linear(3, 1))
            self.aside = [self.left[0]]

        def forward(self, keys: Tensor) -> Tensor:
            return self.left(keys) + self.right(keys) + self.aside[0](keys).sum(1, keepdim=True)

    model = Shared().eval()
    manifest = export_scored(model, tmp_path / "out")
    assert list(manifest.tables) == ["left.0"]
    copy = load_export(tmp_path / "out", Shared())
    assert copy.left[0] is copy.right[0] is copy.aside[0]
    keys = some_keys(30, seed=2)
    with torch.no_grad():
        assert near(copy(keys), model(keys))
        assert near(load_export(tmp_path / "out")(keys), model(keys))


def test_a_table_may_be_all_of_the_module(tmp_path: Path) -> None:
    table = fill(HashEmbedding(3)).eval()
    assert list(export_scored(table, tmp_path / "a").tables) == ["table"]
    bag = fill(HashEmbeddingBag(3)).eval()
    export(bag, tmp_path / "b", (some_keys(8, 2),))
    with torch.no_grad():
        keys = some_keys(5, 2)
        assert torch.equal(load_export(tmp_path / "b")(keys), bag(keys))
        assert torch.equal(load_export(tmp_path / "a", HashEmbedding(3))(keys[:, 0]), table(keys[:, 0]))


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


def test_tables_that_are_no_submodules_are_named(tmp_path: Path) -> None:
    model, other = Listed().eval(), Listed()
    manifest = export_scored(model, tmp_path / "out", tables=model.named())
    assert set(manifest.files) > {"embeddings-first%2Fone.safetensors", "embeddings-second.safetensors"}
    with torch.no_grad():
        keys = some_keys(30, seed=2)
        assert near(load_export(tmp_path / "out", other, other.named())(keys), model(keys))


def test_a_module_of_another_dtype_keeps_it(tmp_path: Path) -> None:
    class Double(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = HashEmbedding(4, dtype=torch.float64), nn.Linear(4, 1, dtype=torch.float64)
            fill(self.table)

        def forward(self, keys: Tensor) -> Tensor:
            return self.layer(self.table(keys))

    model = Double().eval()
    export_scored(model, tmp_path / "out", formats=["program"])
    keys = some_keys(30, seed=2)
    with torch.no_grad():
        found = load_export(tmp_path / "out")(keys)
        assert found.dtype == torch.float64
        assert near(found, model(keys))


def test_a_trained_models_export_is_loaded_as_what_serves_it(tmp_path: Path) -> None:
    opened = opened_model(numbers=True, lists=True)
    export_trained(opened, tmp_path / "out")
    model, batch = load_export(tmp_path / "out"), batch_of(opened, 20)
    served = read_export(tmp_path / "out").serving_model()
    arguments = served.arguments(batch)
    assert torch.equal(model(*arguments), served(*arguments))
    assert list(read_manifest(tmp_path / "out").tables) == ["embedding"]


@settings(max_examples=60)
@given(
    st.sampled_from([0, 1, 3, 8, 12, 16]),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1).filter(lambda key: key % (1 << 48) < (1 << 48) - 1024)),
)
def test_fallback_vectors_are_those_of_the_live_table_for_any_fields(field_bits: int, keys: list[int]) -> None:
    table = fill(HashEmbedding(2, fallback=True, field_bits=field_bits)).eval()
    frozen = FrozenTable(live_rows(table, "float32"))
    asked = torch.cat([torch.tensor(keys, dtype=torch.int64), keys_from(200), keys_from(200) + 1])
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
    manifest = read_manifest(tmp_path / "towers")
    assert manifest.feature_rate < 0.3
    source = Path(two_towers.__file__ or "").read_text()
    score = source[source.index("def score(") : source.index("def main(")]
    assert "torch" not in score.replace("PyTorch", "")
    assert np.__name__ in sys.modules
