"""Exports without keys: what they weigh, what they cost in AUC, and how fast they answer.

The recipe of the guide (target rate, hard threshold, fallback vectors, Group Adagrad) trains a DCN, d = 8, on each log;
its live rows are then brought into each format, and the test rows are predicted. `full` has whole keys, `fp`
fingerprints. The bytes of `embeddings.safetensors` and of the lookup in `model.onnx` are divided by the live rows.

Product quantization, which the library does not have, is computed here: `pq2` and `pq4` cut a row into parts of 2 and 4
elements, each replaced by one of 256 centroids, which Lloyd's algorithm finds for each place among the rows over their
scale. Its bytes are computed: a byte a part, one for the scale, the fingerprint, and the centroids. `int4_as_pq4` is
int4 with as many of the largest rows as fit into the bytes of `pq4`.

Latency is that of the whole model in onnxruntime on one core, with a table of a million rows, in turns. Seven of ten
keys are in the table. False hits are counted on absent keys.

    python benchmarks/compact_export.py --data FOLDER    # with avazu_sample.csv.xz and criteo_sample.txt.xz
"""

import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

import common
from plain_loop import PLAIN, tested, trained
from sparsegroup.artifact.tensor_file import facts_of_tensors
from sparsegroup.data import Log, open_log
from sparsegroup.data.schema import LogSchema
from sparsegroup.serving import ServingModel
from sparsegroup.serving.frozen import FrozenTable, live_rows, sorted_rows
from sparsegroup.serving.frozen_model import frozen_copy
from sparsegroup.serving.onnx import OnnxModel, save_onnx
from sparsegroup.serving.rows import SCALES, Embeddings, bits_for, truncated
from sparsegroup.settings.names import Dtype, KeyFormat
from sparsegroup.training import Config
from sparsegroup_paper.public_shapes import DATASETS, synthesize

FORMATS: tuple[tuple[Dtype, KeyFormat], ...] = (
    ("float32", "full"),
    ("int8", "full"),
    ("float32", "fingerprints"),
    ("int8", "fingerprints"),
    ("int4", "fingerprints"),
)
FIELDS, NUMBERS, DIM = 26, 13, 8
COLUMNS = LogSchema(tuple(f"C{n}" for n in range(FIELDS)), (), tuple(f"I{n}" for n in range(NUMBERS)))
RECIPE = {"optimizer": "adagrad", "lr": 0.03, "fallback": True, "target_rate": 0.1, "dim": DIM}


def short(dtype: str, keys: str) -> str:
    return f"{dtype}_{'fp' if keys == 'fingerprints' else keys}"


def logs(given: Namespace, folder: Path) -> Iterator[tuple[str, Log]]:
    if given.data is not None:
        for name in ("avazu_sample.csv.xz", "criteo_sample.txt.xz"):
            yield name.split(".")[0], open_log(given.data / name)
    yield "synthetic", synthesize(DATASETS["criteo"], 5_000 if given.quick else 5_000_000, folder / "criteo")


def lloyd(points: Tensor, rounds: int = 25, sample: int = 100_000) -> tuple[Tensor, Tensor]:
    """256 centroids of points `[n, size]`, and the nearest one of each."""
    generator = torch.Generator().manual_seed(0)
    some = points[torch.randperm(len(points), generator=generator)[:sample]]
    centroids = pad(some[:256], (0, 0, 0, max(0, 256 - len(some))))
    for _ in range(rounds):
        nearest = torch.cdist(some, centroids).argmin(1)
        counts = torch.zeros(256).index_add_(0, nearest, torch.ones(len(some)))
        sums = torch.zeros_like(centroids).index_add_(0, nearest, some)
        centroids = torch.where(counts.unsqueeze(1) > 0, sums / counts.clamp(min=1).unsqueeze(1), centroids)
    return centroids, torch.cat([torch.cdist(part, centroids).argmin(1) for part in points.split(sample)])


def product_quantized(vectors: Tensor, size: int) -> Tensor:
    """What remains of vectors `[n, DIM]` in parts of `size` elements."""
    largest = vectors.abs().amax(1)
    scale = SCALES[torch.searchsorted(SCALES, largest).clamp(max=255)].unsqueeze(1)
    parts = []
    for part in (vectors / scale).split(size, 1):
        centroids, nearest = lloyd(part.contiguous())
        parts.append(centroids[nearest])
    return torch.cat(parts, 1) * scale


def quality(log: Log) -> dict[str, dict[str, float]]:
    """Format → figures, of a model that is trained on the log; "" → those of the model."""
    config = Config.of(**PLAIN | RECIPE, seed=0).resolved_for(log)
    model, _, score, _ = trained(log, config)
    model.eval()
    figures: dict[str, dict[str, float]] = {"": {"live_rows": score.live_rows, "feature_rate": score.feature_rate}}

    def add(name: str, rows: Embeddings, size: float) -> None:
        found = tested(frozen_copy(model, {"embedding": rows}), log).metrics()
        figures[name] = {"rows": len(rows), "bytes_a_row": size / len(rows)}
        figures[name] |= {"auc": found.auc, "log_loss": found.log_loss}
        figures[name]["auc_gap"] = found.auc - figures["float32_full"]["auc"]

    table = model.embedding
    for dtype, keys in FORMATS:
        rows = live_rows(table, dtype, keys)
        name = short(dtype, keys)
        add(name, rows, facts_of_tensors(rows.tensors()).bytes)
        lookup = FrozenTable(rows).state_dict()
        figures[name]["onnx_bytes_a_row"] = sum(one.nbytes for one in lookup.values()) / len(rows)
        figures[name]["left_out"] = rows.merged
    keys, vectors = sorted_rows(table)
    int4 = live_rows(table, "int4", "fingerprints")
    whole = facts_of_tensors(int4.tensors()).bytes
    for size in (2, 4):
        taken = whole + len(int4) * (DIM / size - DIM / 2) + DIM * 256 * 4
        quantized = Embeddings.of(keys, product_quantized(vectors, size), "float32", int4.fallback, int4.bits)
        add(f"pq{size}_fp", quantized, taken)
    order = vectors.norm(dim=1).argsort(descending=True, stable=True)
    kept = torch.zeros(len(keys), dtype=torch.bool)
    kept[order[: min(len(keys), int(len(keys) * taken / whole))]] = True
    fewer = live_rows(table, "int4", "fingerprints", kept=kept)
    add("int4_as_pq4_fp", fewer, facts_of_tensors(fewer.tensors()).bytes)
    return figures


def made_up(rows: int, generator: torch.Generator) -> Tensor:
    """Keys of the fields, of which some have hundreds of times as many as others."""
    field = (torch.rand(rows, generator=generator) ** 3 * FIELDS).long()
    return ((field << 56) + torch.randint(0, 1 << 56, (rows,), generator=generator)).unique()


def speed(rows: int, rounds: int, folder: Path) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    keys = made_up(rows, generator)
    vectors = torch.randn(len(keys), DIM, generator=generator) / 10
    config = Config.of(**PLAIN, optimizer="adam", penalty="lasso", fallback=True, dim=DIM, l21=1e-4)
    model = config.build_for(COLUMNS)[0].eval()
    figures: dict[str, float] = {}
    models: dict[str, OnnxModel] = {}
    for dtype, kind in FORMATS:
        bits = bits_for(keys) if kind == "fingerprints" else None
        fallback = torch.randn(256, DIM, generator=generator)
        some = Embeddings.of(keys, vectors, dtype, fallback, bits)
        served = ServingModel(frozen_copy(model, {"embedding": some}), COLUMNS)
        name, path = short(dtype, kind), folder / f"{short(dtype, kind)}.onnx"
        save_onnx(served.trace(), path, served.inputs, metadata={})
        models[name] = OnnxModel(path)
        figures[f"{name}.table_bytes_a_row"] = facts_of_tensors(some.tensors()).bytes / len(keys)
        figures[f"{name}.model_bytes_a_row"] = path.stat().st_size / len(keys)
        if bits is not None and dtype == "float32":
            absent = made_up(2 * rows, generator)
            absent = absent[~torch.isin(absent, keys)]
            found = FrozenTable(replace(some, fallback=None))(absent).any(1)
            assert torch.equal(found, torch.isin(truncated(absent, bits), some.keys))
            figures["false_hits_one_in"] = len(absent) / max(1, int(found.sum()))
            figures["false_hits_stated_one_in"] = 1 / some.false_hits
            figures["left_out"] = some.merged
    for size in (1, 512):
        shape = (64, size, FIELDS)
        known = keys[torch.randint(0, len(keys), shape, generator=generator)]
        others = (torch.arange(FIELDS) << 56) + torch.randint(0, 1 << 56, shape, generator=generator)
        batches = torch.where(torch.rand(shape, generator=generator) < 0.7, known, others)
        numbers = torch.randn(size, NUMBERS, generator=generator)
        calls: dict[str, Callable[[int], object]] = {
            name: lambda index, one=one, batches=batches, numbers=numbers: one((batches[index % 64], numbers))
            for name, one in models.items()
        }
        times = common.alternate(calls, rounds, dict.fromkeys(calls, 100 if size == 1 else 20))
        for name, taken in times.items():
            figures[f"{name}.batch_{size}_p50_ms"] = 1e3 * common.median(taken)
            figures[f"{name}.batch_{size}_p99_ms"] = 1e3 * float(np.percentile(taken, 99))
            figures[f"{name}.batch_{size}_over_float32_full"] = common.median(taken) / common.median(
                times["float32_full"]
            )
    return figures


def measure(given: Namespace) -> Iterator[common.Figures]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for title, log in logs(given, Path(folder)):
            found = quality(log)
            of_model = found.pop("")
            yield {title: of_model} | {f"{title}.{name}": figures for name, figures in found.items()}
        rows, rounds = (10_000, 2) if given.quick else (1_000_000, 20)
        yield {"speed": speed(rows, rounds, Path(folder))}


if __name__ == "__main__":
    common.run(measure, __doc__, "a short made-up log, a small table", options=common.DATA)
