"""Equal bytes: few features in float32, or more of them in int8?

The recipe of the guide (`TargetRate`, hard threshold, fallback vectors, Group Adagrad at a learning rate of .03) trains
a model for each feature rate, with several seeds. Its live vectors are then quantized as `sparsegroup export --dtype
int8` does, and the test rows are predicted again. A feature takes its vector and 8 bytes for its key: 4 d + 8 bytes in
float32, d + 1 + 8 in int8, with a scale for each vector. So the same bytes hold (4 d + 8) / (d + 9) times as many
features in int8, 2.9 at d = 16. Four times as many would be if keys and scales took nothing; they are shown as well.

    python benchmarks/int8_size.py avazu.csv --model mlp
"""

from argparse import Namespace
from collections.abc import Iterator
from statistics import mean, stdev

import torch

import common
from plain_loop import LOG, PLAIN, quality_log, trained
from sparsegroup.data import Log
from sparsegroup.serving.rows import Embeddings
from sparsegroup.table import HashEmbedding
from sparsegroup.training import Config, Trainer

RATES = (0.1, 0.03, 0.01)
KEY_BYTES = 8


def quantize(table: HashEmbedding) -> None:
    """Set the live vectors to what int8 leaves of them; exports keep those that stand in as they are."""
    for keys, vectors in list(table.items()):
        table.assign(keys, Embeddings.of(keys, vectors, "int8").decode())


def before_and_after(log: Log, config: Config) -> dict[str, float]:
    """Live features, and the test AUC before and after quantization."""
    model, optimizer, score, _ = trained(log, config)
    quantize(model.embedding)
    after = Trainer(model.embedding, model.network, optimizer).evaluate(log.batches(log.train_rows, len(log), 4096))
    return {"live": score.live_rows, "float32": score.test.auc, "int8": after.auc}


def measure(given: Namespace) -> Iterator[common.Figures]:
    torch.set_num_threads(1)
    log = quality_log(given)
    recipe = {"model": given.model, "optimizer": "adagrad", "lr": 0.03, "fallback": True, "target_rate": RATES[0]}
    base = Config.of(**PLAIN | recipe)
    dim = base.build(log)[0].embedding.dim
    sizes = {"float32": 4 * dim + KEY_BYTES, "int8": dim + 1 + KEY_BYTES}  # int8 has a scale
    ratio = sizes["float32"] / sizes["int8"]
    yield {"dim": dim, "ratio": ratio}
    for rate in RATES[:1] if given.quick else RATES:
        runs = {
            share: [before_and_after(log, base.replace(target_rate=share, seed=seed)) for seed in range(given.seeds)]
            for share in (rate, ratio * rate, 4 * rate)
        }
        found = {}
        for way, dtype, share in (
            ("float32", "float32", rate),
            ("int8", "int8", rate),
            ("int8_same_bytes", "int8", ratio * rate),
            ("int8_four_times", "int8", 4 * rate),
        ):
            aucs = [one[dtype] for one in runs[share]]
            size = mean(one["live"] for one in runs[share]) * sizes[dtype]
            deviation = stdev(aucs) if len(aucs) > 1 else 0.0
            found[f"{rate:g}.{way}"] = {"rate": share, "bytes": size, "auc": mean(aucs), "deviation": deviation}
        yield found


if __name__ == "__main__":
    options = LOG | {"--model": {"choices": ("mlp", "dcn"), "default": "dcn", "help": "default: %(default)s"}}
    common.run(measure, __doc__, "a short made-up log, one seed, one rate", seeds=5, options=options)
