"""Id of an export: each change of a prediction changes the id, and a delta results in the export with its id."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from forgery import forged_arrays, seal_file, with_array
from over import over
from serving_cases import opened_model, serving, train
from sparsegroup.publishing import Publisher
from sparsegroup.serving import ExportError, export_delta, export_trained, read_export
from sparsegroup.serving.exporting import identified, snapshot_of
from sparsegroup.serving.manifest import EXPORT, ModelSignature, TensorFacts
from sparsegroup.serving.opening import apply

DESCRIPTIONS = (
    *("id", "parent", "files", "written_by", "kind", "source", "fields", "before", "test", "changes", "candidates"),
    *("config.optimizer", "config.checkpoint", "config.tracking", "config.data.log", "config.data.test"),
    *(f"tables.embedding.{name}" for name in ("file", "live_rows", "features_seen", "zero_rows")),
    *(f"tables.embedding.{name}" for name in ("merged_rows", "dropped_rows", "false_hits")),
)
"""Parts of a manifest that no prediction depends on."""


def altered(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path of each part of a value, and the value with another part there."""
    if is_dataclass(value) and not isinstance(value, type):
        for name in (one.name for one in fields(value)):
            for path, other in altered(getattr(value, name)):
                yield f"{name}.{path}".rstrip("."), replace(value, **{name: other})
    elif isinstance(value, Mapping):
        for name, part in value.items():
            for path, other in altered(part):
                yield f"{name}.{path}".rstrip("."), {**value, name: other}
        if not value:
            yield "", {"another": 1}
    elif isinstance(value, list | tuple):
        yield "", [*value, *(value or [1])]
    else:
        yield "", 1 if value is None or value == "" else value * 2 if value else 1


def test_each_part_of_a_manifest_that_a_prediction_depends_on_changes_the_id(tmp_path: Path) -> None:
    tensors = (TensorFacts("keys", "int64", (None, 3)),)
    manifest = export_trained(opened_model(numbers=True, lists=True), tmp_path / "out")
    manifest = replace(manifest, signature=ModelSignature(tensors, tensors, "graph"))
    manifest = replace(manifest, id=manifest.expected_id())
    silent = [path for path, other in altered(manifest) if path and other.expected_id() == manifest.id]
    assert [path for path in silent if not path.startswith(DESCRIPTIONS)] == []
    assert {"config.optimizer.lr", "config.data.log", "before.dense", "source"} <= set(silent)


@over(("dtype", "keys"), [("float32", "full"), ("int8", "fingerprints"), ("int4", "full")])
def test_each_number_of_a_table_or_a_network_changes_the_id(dtype: Any, keys: Any) -> None:
    export = snapshot_of(opened_model(rows=30, fallback=True), dtype, keys)
    seen = {identified(export).manifest.id}
    for name, rows in export.tables.items():
        for part in ("keys", "vectors", "scale", "fallback", "bits"):
            if (values := getattr(rows, part)) is None:
                continue
            other = values.clone()
            other.view(-1)[0] += 1 if part != "bits" else -1 if int(values[0]) > 16 else 1
            tables = {**export.tables, name: replace(rows, **{part: other})}
            seen.add(identified(replace(export, tables=tables)).manifest.id)
    for name, weights in export.network.items():
        network = {**export.network, name: weights + 1}
        seen.add(identified(replace(export, network=network)).manifest.id)
    parts = {"float32": 3, "int8": 5, "int4": 4}[dtype]
    assert len(seen) == 1 + parts + len(export.network)


CHANGED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"objective": "softmax", "classes": ["a", "b", "c"]}, {"objective": "softmax", "classes": ["b", "c", "d"]}),
    ({"objective": "squared", "label_scale": 1.0}, {"objective": "squared", "label_scale": 1024.0}),
    ({"objective": "poisson"}, {"objective": "logistic"}),
    ({"columns": {"age": "number", "price": "number"}}, {"columns": {"age": "number", "price": "amount"}}),
]


@pytest.mark.parametrize(("before", "after"), CHANGED)
def test_a_model_whose_answers_changed_is_published(
    before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    with Publisher(tmp_path / "there", formats=()) as publisher:
        for number, settings in enumerate((before, before | after), 1):
            opened = opened_model("mlp", rows=20, hidden=[4], numbers=True, **settings)
            release = publisher.publish(publisher.draft(opened), samples=1)
            assert release is not None
            assert release.number == number
            assert publisher.publish(publisher.draft(opened), samples=1) is None


def test_a_unit_of_the_label_that_differs_in_its_last_digits_changes_the_graph() -> None:
    one, other = (opened_model("lr", rows=5, objective="squared", label_scale=unit) for unit in (1.0, 1.0000001))
    assert serving(one).structure() != serving(other).structure()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an export to `0`, and the delta that follows to `1`."""
    place, opened = tmp_path_factory.mktemp("chain"), opened_model("mlp", rows=60, hidden=[4], fallback=True)
    opened.model.embedding.fallback.data.fill_(0.5)
    export_trained(opened, place / "0")
    train(opened, 1, 0.1)
    export_delta(opened, place / "1", place / "0")
    return place


@over("file", ["upserts.safetensors", "tombstones.safetensors", "network.safetensors"])
def test_a_delta_with_right_digests_that_leads_to_other_rows_is_refused(
    folders: Path, tmp_path: Path, file: str
) -> None:
    base = read_export(folders / "0")
    for name, array in list(load_file(folders / "1" / file).items())[:4]:
        for what, other in forged_arrays(array):
            delta = shutil.copytree(folders / "1", tmp_path / "1", dirs_exist_ok=True)
            (delta / file).write_bytes(with_array(folders / "1" / file, name, other))
            seal_file(delta / "manifest.json", file)
            try:
                applied = apply(base, delta)
            except ExportError:
                continue
            # Tombstones of absent keys have no effect, and other weights are an export of another id.
            assert identified(applied).manifest.id == EXPORT.read(delta).id, (name, what)


def test_weights_of_another_dtype_are_refused(folders: Path) -> None:
    export = read_export(folders / "0")
    for name, weights in export.network.items():
        with pytest.raises(ExportError, match=name):
            replace(export, network={**export.network, name: weights.to(torch.float64)}).model()


@over(("folder", "rows"), [("0", "embeddings.safetensors"), ("1", "upserts.safetensors")])
def test_weights_that_are_not_numbers_are_refused(folders: Path, tmp_path: Path, folder: str, rows: str) -> None:
    for file, part, values in (
        (rows, "vectors", (np.nan, np.inf)),
        (rows, "fallback", (np.nan, np.inf)),
        ("network.safetensors", "bias", (np.nan,)),
    ):
        arrays = load_file(folders / folder / file)
        name = next(name for name in arrays if name.endswith(part))
        for value in values:
            chain = shutil.copytree(folders, tmp_path / "chain", dirs_exist_ok=True)
            array = arrays[name].copy()
            array.reshape(-1)[-1] = value
            (chain / folder / file).write_bytes(with_array(folders / folder / file, name, array))
            seal_file(chain / folder / "manifest.json", file)
            with pytest.raises(ExportError, match=rf"{file}: {name}"):
                read_export(chain / folder)
