"""The figures of `batch_sizes.py` as a page and a picture."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

from sparsegroup.reporting.charts import COLOURS, INK, STYLE

Figures = Mapping[str, float | str]

_INTRODUCTION = """# Batch sizes

Samples per second and test AUC of a pass over a log of Criteo's shape, by batch size: `HashEmbedding` with Group Adam,
asked for 10 % of the features, beside `nn.Embedding(sparse=True)` with `SparseAdam` behind a DataLoader, pruned to the
same number of features by their norm. The same network (DCN, d = 8), samples and learning rate, √(batch / 512) · .001;
nothing is compiled. Written by `python benchmarks/batch_sizes.py LOG`.

![Samples per second and test AUC against the batch size](sizes.png)
"""


def page_of(figures: Figures) -> str:
    """Markdown."""
    return "\n".join([_INTRODUCTION, *_text(figures)]) + "\n"


def batches_of(figures: Figures, network: str) -> list[int]:
    """The batch sizes that were measured."""
    return [int(name.split(".")[1]) for name in figures if name.startswith(f"{network}.") and name.endswith(".speedup")]


def number(figures: Figures, name: str) -> float:
    """A figure."""
    return float(figures[name])


def _text(figures: Figures) -> Iterator[str]:
    yield (
        f"Machine: {figures['machine']}. {number(figures, 'samples'):,.0f} samples with the small network, an eighth "
        "of them with the wide one, all at the beginning of the log, where most keys are new; growing the table and "
        "following the schedule of λ21 are counted. Medians of rounds in which the two take turns.\n"
    )
    if number(figures, "others_cores") > 0.1:
        yield f"*Other processes took {number(figures, 'others_cores'):.1f} cores meanwhile.*\n"
    for network, words in (
        ("small", "hidden layers of 64 and 64 units"),
        ("wide", "hidden layers of 1,024, 512 and 256"),
    ):
        flop = number(figures, f"{network}.flop_per_sample")
        yield f"## A {network} network\n"
        yield (
            f"{words[0].upper()}{words[1:]}: {flop:,.0f} floating-point operations a sample in its products, forward "
            f"and backward. A product of large matrices reaches {number(figures, 'peak_gflops'):,.0f} · 10⁹ a second "
            "here, on all cores: the peak. *Busy* is the share of all cores' time in which they work.\n"
        )
        yield "| batch | ours, samples/s | busy | of peak | theirs | busy | ratio | AUC, ours | theirs | evaluation |"
        yield "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
        for batch in batches_of(figures, network):
            at = f"{network}.{batch}"
            own, other = (number(figures, f"{at}.{who}.samples_per_s") for who in ("ours", "theirs"))
            cells = [
                f"{batch:,}",
                f"{own:,.0f}",
                f"{number(figures, f'{at}.ours.busy'):.0%}",
                f"{number(figures, f'{at}.share_of_peak'):.1%}",
                f"{other:,.0f}",
                f"{number(figures, f'{at}.theirs.busy'):.0%}",
                f"{number(figures, f'{at}.speedup'):.2f}",
                *(f"{number(figures, f'{at}.{who}.auc'):.4f}" for who in ("ours", "theirs")),
                f"{number(figures, f'{at}.ours.evaluated_per_s') / own:.1f}×",
            ]
            yield f"| {' | '.join(cells)} |"
        yield ""
    yield "*Evaluation*: samples per second of `Trainer.evaluate`, whose batches are 4,096, in units of training.\n"


def plot_sizes(figures: Figures, path: Path) -> None:
    """Write the picture."""
    with style.context(["default", STYLE]):
        figure = Figure((9, 3.4), dpi=130, layout="constrained", facecolor="white")
        speed, auc = figure.subplots(1, 2)
        batches = batches_of(figures, "small")
        for who, name, colour in (("ours", "sparsegroup", COLOURS["orange"]), ("theirs", "SparseAdam, pruned", INK)):
            for network, line in (("small", "-"), ("wide", "--")):
                its = batches_of(figures, network)
                values = [number(figures, f"{network}.{batch}.{who}.samples_per_s") for batch in its]
                label = f"{name}, {network} network"
                speed.plot(its, values, line, marker="o", color=colour, label=label)
            values = [number(figures, f"small.{batch}.{who}.auc") for batch in batches]
            auc.plot(batches, values, "-", marker="o", color=colour)
        for axes, words in ((speed, "samples / s"), (auc, "test AUC, small network")):
            axes.set_xscale("log", base=2)
            axes.set_xticks(batches, [f"{batch:,}" for batch in batches])
            axes.set_xlabel("batch size")
            axes.set_ylabel(words)
        speed.set_yscale("log")
        figure.legend(*speed.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
        figure.savefig(path)
