"""The figures as a page of the documentation."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ranks.projection import KINDS, LINKS, REPLICATED
from ranks.step_parts import PARTS

Figures = Mapping[str, Any]
TOLERANCE, MOST_BYTES = 0.15, 1.2

_INTRODUCTION = """# Several ranks, measured

What a `HashEmbedding` whose rows are divided among [several ranks](../../distributed.md) sends, how fast it is on two
cores, and what a model of its steps says of 8, 64 and 512 ranks. Written by `python benchmarks/sharded.py --data
FOLDER`, which measures all of it: DCN over the 26 fields and 13 numbers of a synthetic log of Criteo's shape (Zipf
keys), vectors of 16 numbers where nothing else is said, Group Adam, `DistributedDataParallel` for the network, gloo.
Each rank is a process with one thread on one core.

Machine: {machine}.
"""


def page_of(figures: Figures) -> str:
    """Markdown of the figures of `sharded.py`."""
    parts = (_bytes, _auc, _scaling, _parts, _check, _many, _why, _remedies)
    return "\n".join(
        [_INTRODUCTION.format(machine=figures.get("machine", "")), *(line for part in parts for line in part(figures))]
    )


def _table(columns: Iterable[str], lines: Iterable[Iterable[str]]) -> Iterator[str]:
    names = list(columns)
    yield f"| {' | '.join(names)} |"
    yield f"|---|{'---:|' * (len(names) - 1)}"
    for line in lines:
        yield f"| {' | '.join(line)} |"
    yield ""


def _found(figures: Figures, pattern: str) -> list[tuple[str, ...]]:
    """The groups of a pattern in the names of figures, each once, in the order of the figures."""
    found = (re.fullmatch(pattern, name) for name in figures)
    return list(dict.fromkeys(match.groups() for match in found if match))


def _bytes(figures: Figures) -> Iterator[str]:
    cases = _found(figures, r"bytes\.(\d+)_ranks\.(\w+)\.ratio")
    if not cases:
        return
    ratios = [figures[f"bytes.{ranks}_ranks.{wire}.ratio"] for ranks, wire in cases]
    yield "## Bytes on the wire\n"
    yield (
        "The least that can be sent: each distinct key of a rank's batch whose row is on another rank goes there, 8 "
        "bytes, its vector comes back, and its gradient goes, each of 4 (in bfloat16 2) bytes a number. A rank sends "
        f"at most {max(ratios):.4f} of that, with the headers of exchanges, where {MOST_BYTES} was the aim. *On the "
        "card*: what the network cards of so many network namespaces have sent in the same steps, with headers and "
        "acknowledgements, in packets of up to 64 KB; where a packet has 1,500 bytes, headers are another 5 %. The "
        "network's gradients are left out. 2,048 samples of each rank; with more, there are fewer distinct keys a "
        "sample.\n"
    )

    def cells() -> Iterator[list[str]]:
        for ranks, wire in cases:
            one = f"bytes.{ranks}_ranks.{wire}"
            card = figures.get(f"{one}.on_card_per_sample")
            yield [
                f"{ranks} ranks, {wire}",
                *(
                    f"{figures[f'{one}.{name}']:.2f}"
                    for name in ("distinct_per_sample", "least_per_sample", "per_sample")
                ),
                f"{figures[f'{one}.ratio']:.4f}",
                *(
                    "–" if card is None else f"{card:.2f}",
                    "–" if card is None else f"{figures[f'{one}.on_card_ratio']:.3f}",
                ),
            ]

    columns = ("", "distinct keys a sample", "least bytes a sample", "sent", "ratio", "on the card", "ratio")
    yield from _table(columns, cells())


def _auc(figures: Figures) -> Iterator[str]:
    logs = [log for (log,) in _found(figures, r"auc\.(.+)\.difference")]
    if not logs:
        return
    yield "## bfloat16 on the wire\n"
    yield (
        "`wire_dtype=torch.bfloat16` rounds vectors and gradients where they leave. Test AUC after one pass on two "
        "ranks, batches of 2 × 32, and the difference with the same seed, which draws the start of table and network: "
        f"mean ± its standard error over {figures[f'auc.{logs[0]}.seeds']:.0f} seeds.\n"
    )
    yield from _table(
        ("log", "AUC, float32", "bfloat16 − float32"),
        (
            [
                log.replace("_", "\\_"),
                f"{figures[f'auc.{log}.auc']:.4f}",
                f"{figures[f'auc.{log}.difference']:+.5f} ± {figures[f'auc.{log}.standard_error']:.5f}",
            ]
            for log in logs
        ),
    )


def _scaling(figures: Figures) -> Iterator[str]:
    batches = [batch for (batch,) in _found(figures, r"scaling\.weak_(\d+)")]
    if not batches:
        yield "## Time\n"
        yield (
            "The times of steps, and what follows of them for many ranks, are not on this page yet: they need an idle "
            "machine. `python benchmarks/sharded.py --only steps projection` adds them.\n"
        )
        return
    yield "## From one process to two\n"
    if figures["others_cores"] > 0.1:
        yield (
            f"*Measured on a machine of which other processes took {figures['others_cores']:.1f} cores meanwhile, "
            "which is too much: `python benchmarks/sharded.py --only steps projection` measures them again.*\n"
        )
    yield (
        "Samples per second of two ranks on two cores, in units of one process without a group on one core; they take "
        "turns, medians over rounds (quartiles in brackets). *Weak*: each rank has the batch of the one process; "
        "*strong*: half of it. *Apart*: two processes train a model each and say nothing to each other, which is what "
        "the machine has to give. *One rank*: a group of one, in units of the process without a group.\n"
    )
    for label, text in (("scaling", ""), ("scaling_by_default", _DEFAULT)):
        if text:
            yield text
        yield from _table(
            ("batch", "ms alone", "one rank", "weak", "strong", "apart"),
            (
                [
                    f"{int(batch):,}",
                    f"{figures[f'{label}.ms_alone_{batch}']:.2f}",
                    f"{figures[f'{label}.ms_alone_{batch}'] / figures[f'{label}.ms_one_rank_{batch}']:.2f}",
                    *(_ratio(figures, f"{label}.{kind}_{batch}") for kind in ("weak", "strong", "apart")),
                ]
                for batch in batches
            ),
        )


_DEFAULT = """The same with gloo's receiving threads scheduled as the system does by default. Such a thread asks for its
connection's lock without end while the thread that sends has it; where both share a core and the sender is interrupted
meanwhile, an exchange is held up until the time slice is over, after 3 to 4 ms. So `sparsegroup` tells these threads
(`SCHED_BATCH`, on Linux) not to interrupt others; on hosts with a core to spare for each rank nothing changes.
"""


def _ratio(figures: Figures, name: str) -> str:
    return f"{figures[name]:.2f} ({figures[f'{name}_low']:.2f} – {figures[f'{name}_high']:.2f})"


def _parts(figures: Figures) -> Iterator[str]:
    if "parts.2_ranks.waiting_ms" not in figures:
        return
    yield "## A step by part\n"
    yield (
        "Milliseconds of each part of a step, 2,048 samples of each rank. Here the ranks first wait for each other "
        "wherever they meet, and do nothing else while they exchange; so *waiting* is for the slower one alone, and "
        "the sum is more than an ordinary step, in which the all-reduce goes on beside the table's exchange. "
        "*Threads* is vectors' way into the exchange and out of it. These times are from before each exchange had a "
        "header, with which ranks check that they do the same: *numbers out* was one exchange a step, and is four.\n"
    )
    names = {part: part.replace(" ", "_") for part in PARTS}
    lines = [
        [part, *(f"{figures[f'parts.{ranks}_ranks.{name}_ms']:.2f}" for ranks in (1, 2))]
        for part, name in names.items()
    ]
    sums = [sum(figures[f"parts.{ranks}_ranks.{name}_ms"] for name in names.values()) for ranks in (1, 2)]
    yield from _table(("", "one rank", "two ranks"), [*lines, ["sum", *(f"{one:.2f}" for one in sums)]])


def _check(figures: Figures) -> Iterator[str]:
    cases = [name for (name,) in _found(figures, r"((?:check|network)\..+)\.error")]
    if not cases:
        return
    errors = [abs(figures[f"{name}.error"]) for name in cases]
    within = sum(error <= TOLERANCE for error in errors)
    yield "## The model, and whether it is right\n"
    yield (
        "A step's time is the sum of its parts, each a line in what it has to do at the busiest rank: samples, "
        "distinct keys, keys that are asked for, rows that are stepped, bytes (`benchmarks/ranks/step_model.py` has "
        "them all). Its constants are fitted to the parts of steps of 512 and 4,096 samples with vectors of 8 and 32 "
        "numbers, on one rank and on two. The steps below, as they are in training and with other batches and dims, "
        "were not part of that; of a link the model knows the limit, and what an exchange without content takes "
        f"longer than on one host. {within} of {len(cases)} are within {TOLERANCE:.0%}, the largest error is "
        f"{max(errors):.0%}. (Of steps and predictions: the fastest quarter's slowest step, least disturbed round.)\n"
    )

    def cells() -> Iterator[list[str]]:
        for name in cases:
            yield [
                _words(name),
                *(f"{figures[f'{name}.{one}']:.1f}" for one in ("ms", "predicted_ms")),
                f"{figures[f'{name}.error']:+.0%}",
            ]

    yield from _table(("", "ms", "predicted", "error"), cells())
    ahead = [(rate, batch) for rate, batch in _found(figures, r"network\.(\w+)\.batch_(\d+)\.float32_ahead\.ms")]
    if ahead:
        texts = [
            f"{figures[f'network.{rate}.batch_{batch}.float32_ahead.ms']:.1f} ms ({_rate(rate)})"
            for rate, batch in ahead
        ]
        yield f"With `prefetch`, {int(ahead[0][1]):,} samples: {', '.join(texts)}.\n"
    yield (
        f"Of the constants: an exchange without content takes {1e6 * figures['model.start']:.0f} µs between two ranks, "
        f"and {1e6 * figures['model.peer']:.0f} µs of the processor for each further one (at most: more ranks than "
        f"cores were at it); a byte takes {1e9 * figures['model.byte']:.2f} ns, so that gloo moves "
        f"{8e-9 / max(figures['model.byte'], 1e-12):.0f} Gb/s on a core; a hop of the all-reduce "
        f"{1e6 * figures['model.hop']:.0f} µs. Of the two cores of this machine, each is slower by "
        f"{figures['model.crowding'] - 1:.0%} while the other computes, too.\n"
    )


def _words(name: str) -> str:
    kind, first, batch, *rest = name.split(".")
    samples = f"{int(batch.removeprefix('batch_')):,} samples"
    if kind == "check":
        ranks = "one rank" if first == "1_ranks" else "two ranks"
        return f"{ranks}, {samples}, {rest[0].replace('dim_', 'd = ')}"
    return f"two hosts, {_rate(first)}, {samples}, {rest[0]}"


def _rate(rate: str) -> str:
    return {"unlimited": "no limit"}.get(
        rate, re.sub(r"(\d+)([gm])bit", r"\1 \2b/s", rate).replace(" g", " G").replace(" m", " M")
    )


def _many(figures: Figures) -> Iterator[str]:
    cases = _found(figures, r"weak\.(\w+)\.(\d+)_ranks\.(\d+)gbit\.ms")
    if not cases:
        return
    yield "## 8, 64 and 512 ranks\n"
    yield (
        "By the model: 2,048 samples of each rank, each on a host of its own with a core for it and a link of the "
        "given rate. Keys are drawn, a step of all ranks at once, and routed by the library's own `Routing`: *skewed* "
        "as in the log, *uniform* with each value of a field as likely as any. *Busiest*: keys that are asked of the "
        "busiest rank, in units of the mean. *Messages*: what the four exchanges take without any content. "
        "*Efficiency*: samples per second and rank, in units of one process alone.\n"
    )
    names = ("ms", "computed_ms", "content_ms", "messages_ms", "all_reduce_ms")
    yield from _table(
        (
            "keys, ranks, link",
            "busiest",
            "ms",
            "computed",
            "content",
            "messages",
            "all-reduce",
            "efficiency",
            "samples/s",
        ),
        (
            [
                f"{kind}, {ranks}, {gigabits} Gb/s",
                f"{figures[f'weak.{kind}.{ranks}_ranks.{gigabits}gbit.busiest']:.2f}",
                *(f"{figures[f'weak.{kind}.{ranks}_ranks.{gigabits}gbit.{name}']:.1f}" for name in names),
                f"{figures[f'weak.{kind}.{ranks}_ranks.{gigabits}gbit.efficiency']:.0%}",
                f"{figures[f'weak.{kind}.{ranks}_ranks.{gigabits}gbit.samples_per_s']:,.0f}",
            ]
            for kind, ranks, gigabits in cases
        ),
    )
    yield f"The same {figures['strong.samples']:,.0f} samples in a step, however many ranks, in ms:\n"
    ranks = [ranks for (ranks,) in _found(figures, r"strong\.skewed\.10gbit\.(\d+)_ranks\.ms")]
    yield from _table(
        ("keys, link", *(f"{number} ranks" if number != "1" else "one rank" for number in ranks), "fastest"),
        (
            [
                f"{kind}, {gigabits} Gb/s",
                *(f"{figures[f'strong.{kind}.{gigabits}gbit.{number}_ranks.ms']:.1f}" for number in ranks),
                f"{figures[f'strong.{kind}.{gigabits}gbit.fastest_ranks']:.0f} ranks, "
                f"{figures[f'strong.{kind}.{gigabits}gbit.fastest_ms']:.1f}",
            ]
            for kind in KINDS
            for gigabits in LINKS
        ),
    )


def _why(figures: Figures) -> Iterator[str]:
    if "weak.skewed.10gbit.half_efficient_ranks" not in figures:
        return
    yield "## Where it stops, and why\n"
    most = max(int(ranks) for (ranks,) in _found(figures, r"weak\.skewed\.(\d+)_ranks.10gbit.ms"))
    for gigabits in LINKS:
        at = figures[f"weak.skewed.{gigabits}gbit.half_efficient_ranks"]
        lost = {
            text: figures[f"weak.skewed.{most}_ranks.{gigabits}gbit.{name}"]
            for name, text in (
                ("all_reduce_ms", "the network's all-reduce, of which a ring takes 2 (n - 1) hops one after the other"),
                (
                    "messages_ms",
                    "messages: each of four exchanges has one for each other rank, however little is in it",
                ),
                ("content_ms", "what is in the exchanges"),
            )
        }
        first, second, third = sorted(lost, key=lost.__getitem__, reverse=True)
        total = figures[f"weak.skewed.{most}_ranks.{gigabits}gbit.ms"]
        where = f"up to {at:.0f} ranks a rank is" if at < most else f"with all of {most} ranks, one is still"
        yield (
            f"- At {gigabits} Gb/s, with skewed keys, {where} half as fast as one process alone, or more. Of the "
            f"{total:.1f} ms of a step on {most}, {lost[first]:.1f} are {first}; {lost[second]:.1f} are {second}; "
            f"{lost[third]:.1f} are {third}.\n"
        )
    skewed, uniform = (figures[f"weak.{kind}.{most}_ranks.10gbit.busiest"] for kind in ("skewed", "uniform"))
    distinct = [figures[f"weak.{kind}.{most}_ranks.10gbit.content_ms"] for kind in ("skewed", "uniform")]
    yield (
        "- Skew itself costs little, because each rank asks for a key once, however often its batch has it: the "
        f"busiest of {most} ranks is asked for {skewed:.2f} times the mean, with uniform keys {uniform:.2f} times. "
        f"Skewed batches also have fewer distinct keys: what is in the exchanges takes {distinct[0]:.1f} ms, with "
        f"uniform keys {distinct[1]:.1f}.\n"
    )
    yield (
        "- Not in the model: a rank that is late for reasons of its own, for which all wait in each exchange; "
        "switches that are not as fast as all their links together; distances.\n"
    )


def _remedies(figures: Figures) -> Iterator[str]:
    cases = _found(figures, r"remedies\.(\d+)_ranks\.(\d+)gbit\.none_ms")
    if not cases:
        return
    yield "## What would be done about it\n"
    yield (
        "By the same model, skewed keys, ms of a step: vectors in bfloat16; the hottest rows on all ranks, which look "
        "them up and step them by gradients that are all-reduced with the network's; and, where eight ranks of a host "
        "share a link of that rate, exchanges as they are beside exchanges by host: keys are united within the host "
        "first, cross its link once, and each rank talks to one of each other host. Of these, the library has "
        "bfloat16.\n"
    )
    names = ("none", "bfloat16", *(f"replicated_{count}" for count in REPLICATED), "shared_link", "by_host")
    heads = ("as it is", "bfloat16", *(f"{count:,} hot rows" for count in REPLICATED), "8 a host", "by host")
    yield from _table(
        ("ranks, link", *heads),
        (
            [
                f"{ranks}, {gigabits} Gb/s",
                *(f"{figures[f'remedies.{ranks}_ranks.{gigabits}gbit.{name}_ms']:.1f}" for name in names),
            ]
            for ranks, gigabits in cases
        ),
    )
    most = max(int(ranks) for ranks, _ in cases)
    as_it_is = figures[f"remedies.{most}_ranks.10gbit.none_ms"]
    hot = min(figures[f"remedies.{most}_ranks.10gbit.replicated_{count}_ms"] for count in REPLICATED)
    shared, by_host = (figures[f"remedies.{most}_ranks.10gbit.{name}_ms"] for name in ("shared_link", "by_host"))
    yield (
        f"On {most} ranks at 10 Gb/s, hot rows everywhere change a step by {hot / as_it_is - 1:+.0%} at best; a row's "
        "gradient takes as many bytes in an all-reduce as to its rank and back. Exchanges by host change it by "
        f"{by_host / shared - 1:+.0%}: fewer messages, fewer hops, and what several ranks of a host ask for goes over "
        "its link once.\n"
    )
