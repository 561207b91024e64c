"""What it costs to ask for a size: a sample of a table's rows, the last look at all of them, and the sweep.

A table of 33.8M rows, d = 8, that Group Adam has stepped, as in `table_step.py`. Timed in turns: one training step of
512 × 39 keys, from keys to updated rows; setting λ21 by a sample, of 65,536 rows and of 8,192; looking at all rows; and
a sweep over all of them. `TargetRate` does the second fifty times in a pass, and the last two once, at its end.
`share_of_pass` is all of that over a pass of 88,000 such steps, 45M samples, with 3 ms more for each network step.

    python benchmarks/target_rate.py    # 6 GiB of memory
"""

import numpy as np
import torch

import timing
from sparsegroup import GroupAdam, HashEmbedding, TargetRate
from sparsegroup.kernels.cpu.threads import set_num_threads
from table_step import BATCH, CARDINALITIES, DIM, GROUP_ADAM, Clicks, key

STEPS, NETWORK_MS, CONTROLS = 88_000, 3.0, 50
AT_A_TIME = 1 << 19


def filled(clicks: Clicks, gradient: float) -> tuple[HashEmbedding, GroupAdam]:
    """A table of all keys, each stepped once."""
    table = HashEmbedding(DIM, field_bits=8)
    optimizer = GroupAdam(table.parameters(), **GROUP_ADAM)
    generator = torch.Generator().manual_seed(0)
    for field, count in enumerate(clicks.cardinalities.tolist()):
        for first in range(0, count, AT_A_TIME):
            keys = key(field, np.arange(first, min(first + AT_A_TIME, count)))
            optimizer.zero_grad()
            table(keys).backward(gradient * torch.randn(len(keys), DIM, generator=generator))
            optimizer.step()
    optimizer.zero_grad()
    return table, optimizer


def main() -> None:
    arguments = timing.parser(__doc__, quick="a table of 340,000 rows").parse_args()
    set_num_threads(arguments.threads)
    torch.set_num_threads(1)
    print(timing.machine())
    rng = np.random.default_rng(1)
    clicks = Clicks.scaled(0.01 if arguments.quick else 1.0, rng)
    table, optimizer = filled(clicks, 1e-3)
    batches = key(np.arange(len(CARDINALITIES)), clicks.of_ranks(clicks.ranks(20, rng))).view(20, BATCH, -1)
    gradient = 1e-3 * torch.randn(BATCH, len(CARDINALITIES), DIM)
    large, small = (TargetRate(optimizer, 0.03, steps=STEPS, ramp=0, sample=size) for size in (65_536, 8_192))
    number = 0

    def step() -> None:
        nonlocal number
        optimizer.zero_grad()
        table(batches[number % len(batches)]).backward(gradient)
        optimizer.step()
        number += 1

    def control(target: TargetRate) -> None:
        target.count += 1  # another sample
        target.set_l21(target.sample)

    contenders = {
        "step": step,
        "sample_65536": lambda: control(large),
        "sample_8192": lambda: control(small),
        "all_rows": lambda: large.set_l21(0),
        "sweep": lambda: optimizer.sweep(zero_untrained=True),
    }
    for run in contenders.values():
        run()
    rounds = 3 if arguments.quick else 7
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            often = 20 if name == "step" else 1
            times[name].append(sum(timing.seconds(run) for _ in range(often)) / often)
    figures = {f"ms_{name}": 1e3 * float(np.median(found)) for name, found in times.items()}
    cost = CONTROLS * figures["ms_sample_65536"] + figures["ms_all_rows"] + figures["ms_sweep"]
    figures["share_of_pass"] = cost / (STEPS * (figures["ms_step"] + NETWORK_MS))
    figures["rows"] = float(table.num_rows)
    figures["feature_rate"] = table.feature_rate
    timing.show(
        f"{table.num_rows:,} rows, {arguments.threads} threads",
        ("", "ms", "training steps"),
        [(name, f"{ms:.2f}", f"{ms / figures['ms_step']:.1f}") for name, ms in figures.items() if name[:3] == "ms_"],
    )
    print(f"of a pass of {STEPS:,} steps: {figures['share_of_pass']:.3%}")
    timing.write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
