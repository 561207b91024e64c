"""Equal bytes: few features in float32, or more of them in int8?

The recipe of the guide (`TargetRate`, hard threshold, fallback vectors, Group Adagrad at a learning rate of .03) trains
a model for each feature rate, with several seeds. Its live vectors are then quantized as `sparsegroup export --dtype
int8` does, and the test rows are predicted again. A feature takes its vector and 8 bytes for its key: 4 d + 8 bytes in
float32, d + 1 + 8 in int8, with a scale for each vector. So the same bytes hold (4 d + 8) / (d + 9) times as many
features in int8, 2.9 at d = 16. Four times as many would be if keys and scales took nothing; they are shown as well.

    python benchmarks/int8_size.py avazu.csv --model mlp
"""

from statistics import mean, stdev

import torch

import timing
from plain_loop import PLAIN, quality_log
from sparsegroup.data import Log
from sparsegroup.serving.rows import Embeddings
from sparsegroup.table import HashEmbedding
from sparsegroup.training import Config, Trainer
from sparsegroup.training.selection.sizes import train_and_test

RATES = (0.1, 0.03, 0.01)
KEY_BYTES = 8


def quantize(table: HashEmbedding) -> None:
    """Set the live vectors to what int8 leaves of them; exports keep those that stand in as they are."""
    for keys, vectors in list(table.items()):
        table.assign(keys, Embeddings.of(keys, vectors, "int8").decode())


def measured(log: Log, config: Config) -> dict[str, float]:
    """Live features, and the test AUC before and after quantization."""
    model, optimizer = config.build(log)
    result = train_and_test(config, model, optimizer, log)
    quantize(model.embedding)
    after = Trainer(model.embedding, model.network, optimizer).evaluate(log.batches(log.train_rows, len(log), 4096))
    return {"live": result.live_rows, "float32": result.test.auc, "int8": after.auc}


def main() -> None:
    parser = timing.parser(__doc__, "a short made-up log, one seed, one rate", seeds=5)
    parser.add_argument("log", nargs="?", help="a raw log, or a folder that `sparsegroup prepare` has written")
    parser.add_argument("--model", choices=("mlp", "opnn", "dcn"), default="dcn", help="default: %(default)s")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = quality_log(parser, arguments)
    seeds, rates = (1, RATES[:1]) if arguments.quick else (arguments.seeds, RATES)
    recipe = {"model": arguments.model, "optimizer": "adagrad", "lr": 0.03, "fallback": True, "target_rate": RATES[0]}
    base = Config.of(**PLAIN | recipe)
    dim = base.build(log)[0].embedding.dim
    sizes = {"float32": 4 * dim + KEY_BYTES, "int8": dim + 1 + KEY_BYTES}  # int8 has a scale
    ratio = sizes["float32"] / sizes["int8"]
    figures: dict[str, float] = {"dim": dim, "ratio": ratio}
    lines = []
    for rate in rates:
        runs = {
            share: [measured(log, base.replace(target_rate=share, seed=seed)) for seed in range(seeds)]
            for share in (rate, ratio * rate, 4 * rate)
        }
        for way, dtype, share in (
            ("float32", "float32", rate),
            ("int8", "int8", rate),
            ("int8_same_bytes", "int8", ratio * rate),
            ("int8_four_times", "int8", 4 * rate),
        ):
            aucs = [one[dtype] for one in runs[share]]
            size = mean(one["live"] for one in runs[share]) * sizes[dtype]
            deviation = stdev(aucs) if len(aucs) > 1 else 0.0
            found = {"rate": share, "bytes": size, "auc": mean(aucs), "deviation": deviation}
            figures |= {f"{rate:g}.{way}.{name}": value for name, value in found.items()}
            lines.append((f"{rate:g}", dtype, f"{share:.3g}", f"{size:,.0f}", f"{mean(aucs):.4f}", f"{deviation:.4f}"))
    title = f"{log.name}, d = {dim}: int8 holds {ratio:.2f} times the features in the same bytes"
    timing.show(title, ("budget: float32 at", "dtype", "feature rate", "bytes", "test AUC", "± sd"), lines)
    timing.write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
