"""What README and docs print runs as printed, and the figures in the docs are those that the benchmarks wrote."""

import json
import re
import runpy
import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sparsegroup.cli.app import COMMANDS, load_command
from sparsegroup_paper.equal_bytes.ours import VARIANTS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
EXAMPLES = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in sorted((ROOT / "docs").glob("*.md"))
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))
    if "--8<--" not in code  # an included file, which has a test of its own
]


def measured(name: str) -> dict[str, Any]:
    """The figures that a benchmark wrote."""
    figures: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return figures


def doc(name: str) -> str:
    folder = ROOT if name == "README" else ROOT / "docs"
    return (folder / f"{name}.md").read_text()


MEASURED = doc("measured")


def joined(page: str) -> str:
    """A page as one line."""
    return " ".join(page.split())


def line(*cells: str) -> str:
    """A line of a table, or its last cells."""
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_runs_as_printed(code: str) -> None:
    exec(compile(code, "example", "exec"), {"__name__": "__main__"})


def test_every_printed_command_has_the_options_that_it_is_printed_with() -> None:
    unknown = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for block in re.findall(r"```.*?```", page.read_text(), flags=re.DOTALL):
            for name, rest in re.findall(r"\bsparsegroup (\w+)((?:[^\n#]|(?<=\\)\n|\n +[\[-])*)", block):
                if name in COMMANDS:
                    known = {
                        one
                        for parameter in load_command(name).params
                        for one in (*parameter.opts, *parameter.secondary_opts)
                    }
                    unknown += [
                        (page.name, name, one)
                        for one in re.findall(r"(?<![\w-])--[a-z][\w-]*", rest)
                        if one not in known
                    ]
    assert unknown == []


@pytest.mark.parametrize("page", ["README", "index"])
def test_the_first_example_keeps_the_features_that_matter(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", doc(page), flags=re.DOTALL)
    exec(compile(code, page, "exec"), {})
    printed = re.fullmatch(r"loss ([\d.]+), feature rate ([\d.]+)\n", capsys.readouterr().out)
    assert printed is not None
    assert float(printed[1]) < 0.2
    assert printed[2] == "0.050"


SHOWN = [
    ("table_step", "measured", "sparse_adam fbgemm fbgemm_sequence dense_adam",
     "| {ms_NAME:.2f} | {speedup_vs_NAME:.2f} | {ms_NAME_small_pages:.2f} | {speedup_vs_NAME_small_pages:.2f} |"),
    ("table_step", "measured", "-", "| {ms_per_batch:.2f} | 1 | {ms_per_batch_small_pages:.2f} | 1 |"),
    ("table_step", "measured-size", "-", "{target_ms_sample_65536:.2f} ms for a sample"),
    ("table_step", "measured-size", "-", "{target_ms_sample_8192:.2f} ms for the 8,192"),
    ("table_step", "measured-size", "-", "{target_share_of_pass:.2%} of a pass of 88,000 steps"),
    ("table_step", "measured-size", "-", "{target_ms_step:.2f} ms for the table"),
    ("table_step", "README", "-", "a table's step 2.7 to {speedup_vs_sparse_adam:.1f} times as fast as `SparseAdam`"),
    ("optimizer_step", "measured", "unregularized regularized",
     "| {dense_ratio_NAME:.2f} | {small_tensors_ratio_NAME:.2f} |"),
    ("table_growth", "measured", "-", "{bytes_per_row:.0f} bytes per row"),
    ("table_bags", "measured", "-", "{ms_ours:.2f} ms from keys to updated rows, and {ms_vectors:.2f} where"),
    ("table_bags", "measured", "-", "{speedup_vs_sparse_adam:.2f} times as long, FBGEMM {speedup_vs_fbgemm:.2f}"),
    ("epoch", "measured", "s s_slice s_39_fields s_raw s_8192", "| {samples_per_NAME:,.0f} |"),
    ("epoch", "measured", "sparse_adam sparse_adam_8192",
     "| {samples_per_s_NAME:,.0f} | ratio {speedup_vs_NAME:.2f} |"),
    ("epoch", "measured", "dense_adam", "| {samples_per_s_NAME:,.0f} | ratio {speedup_vs_NAME:.0f} |"),
    ("epoch", "README", "-", "{samples_per_s:,.0f} samples/s on two cores"),
    ("epoch", "README", "-",
     "{speedup_vs_sparse_adam:.1f} to {speedup_vs_sparse_adam_8192:.1f} times as fast as with"),
    ("scoring", "measured", "float32_full int8_full int4_fingerprints",
     "| {NAME:,.0f} | {NAME_operators:,.0f} | {NAME_over_operators:.2f} | {NAME_over_training:.2f} |"),
    ("serving", "measured", "sparse int8 full dense_ids",
     "| {NAME_batch_1_p50_ms:.3f} | {NAME_batch_1_p99_ms:.3f} | {NAME_batch_512_p50_ms:.2f} | "
     "{NAME_batch_512_p99_ms:.2f} | {NAME_batch_512_samples_per_s:,.0f} | {NAME_load_ms:,.0f} |"),
    ("serving", "measured", "write read",
     "at {checkpoint_NAME_gb_per_s:.2f} GB/s, {checkpoint_NAME_over_copy:.2f} of"),
    ("serving", "measured", "float32 int8", "{NAME_embeddings_bytes_over_dense:.2%}"),
    ("serving", "measured", "-", "trains again after {resume_seconds:.1f} s"),
    ("serving", "README", "-", "{sparse_batch_1_p50_ms:.3f} ms a sample"),
    ("compact_export", "measured-size", "int8_full int8_fp int4_fp pq2_fp pq4_fp int4_as_pq4_fp",
     "| {avazu_sample.NAME.bytes_a_row:.1f}, {avazu_sample.NAME.auc_gap:+.5f} | {criteo_sample.NAME.bytes_a_row:.1f}, "
     "{criteo_sample.NAME.auc_gap:+.5f} | {synthetic.NAME.bytes_a_row:.1f}, {synthetic.NAME.auc_gap:+.5f} |"),
    ("compact_export", "measured-size", "speed",
     "takes {NAME.int8_fp.batch_1_over_float32_full:.2f} times as long in int8 and "
     "{NAME.int4_fp.batch_1_over_float32_full:.2f} times in int4 as in float32 with whole keys for one row, and "
     "{NAME.int8_fp.batch_512_over_float32_full:.2f} and {NAME.int4_fp.batch_512_over_float32_full:.2f} times"),
    ("freshness", "continuous", "each_batch 1_min 10_min 1_h 6_h 1_day",
     "| TITLE | {news_NAME_auc:.4f} | {news_NAME_log_loss:.4f} | {globo_clicks_NAME_auc:.4f} | "
     "{globo_clicks_NAME_log_loss:.4f} | {made_up_NAME_auc:.4f} | {made_up_NAME_log_loss:.4f} |"),
    ("continuous", "continuous", "follow follow_publishing",
     "{NAME_samples_per_s:,.0f} samples/s, {NAME_ratio:.2f} times"),
    ("continuous", "continuous", "10 50 100", "{resident_mb_NAME:,.0f} MB"),
    ("replay", "continuous", "made_up globo_clicks", "| {NAME_fast_p50_ms:.1f} | {NAME_fast_p99_ms:.1f} |"),
    ("replay", "continuous", "made_up globo_clicks",
     "| {NAME_slow_stale_p50_s:.1f} | {NAME_slow_stale_p99_s:.1f} | {NAME_slow_p50_ms:.1f} | {NAME_slow_p99_ms:.1f} |"),
    ("server", "serving", "-", "{failed:,.0f} of {requests:,.0f} requests failed"),
    ("server", "serving", "50 95 99", "pNAME {quiet_pNAME_ms:.1f}"),
    ("server", "serving", "50 95 99", " and {swapping_pNAME_ms:.1f}"),
    ("server", "serving", "-", "{stale_p99_s:.2f} s (p99)"),
    ("server", "serving", "-", "{known_1_p50_ms:.1f}, {known_32_p50_ms:.1f}"),
]  # fmt: skip
"""Benchmark, page, names, and what the page shows of each NAME, with the benchmark's figures in braces."""


@pytest.mark.parametrize(("benchmark", "page", "names", "shown"), SHOWN)
def test_the_documentation_shows_what_was_measured(benchmark: str, page: str, names: str, shown: str) -> None:
    figures = measured(benchmark)
    for name in names.split():
        own = shown.replace("NAME", name).replace("TITLE", name.replace("_", " "))
        text = re.sub(r"\{(.+?):(.+?)\}", lambda found: format(figures[found[1]], found[2]), own)
        assert text.replace("-", "−" if page == "measured-size" else "-").replace("%", " %") in joined(doc(page))


def test_the_documentation_shows_sums_of_what_was_measured() -> None:
    figures, replay = measured("table_step"), measured("replay")
    for name in ("all_rows", "sweep"):
        assert f"{figures[f'target_ms_{name}'] / 1e3:.1f} s to" in joined(doc("measured-size"))
    requests, failed = (
        sum(replay[f"{log}_{of}"] for log in ("made_up", "globo_clicks")) for of in ("requests", "failed")
    )
    assert f"{failed:,.0f} of {requests:,.0f} requests failed" in joined(doc("continuous"))


def test_the_documentation_shows_what_smaller_rows_cost() -> None:
    figures, page = measured("row_state"), doc("memory")
    for name in ("adam", "adam_bfloat16", "adagrad", "adagrad_bfloat16", "rowwise_adagrad"):
        cells = [f"{figures[f'{name}.{one}']:.0f}" for one in ("row_bytes", "bytes_per_row")]
        cells.append(f"{figures[f'{name}.step_ms']:.2f}")
        for log in ("criteo_sample", "avazu_sample", "globo_clicks"):
            auc, loss, bias = (figures[f"{log}.{name}.{one}"] for one in ("auc", "log_loss", "calibration"))
            cells.append(f" {auc:.4f} / {loss:.4f} / {bias:.2f}".replace(" 0.", " .").strip())
        assert line(*cells) in page, name


def test_the_documentation_shows_what_later_epochs_do() -> None:
    for path in sorted(RESULTS.glob("epochs-*.json")):
        log, figures = path.stem.removeprefix("epochs-"), measured(path.stem)
        for features, way in product(("all", "0.1"), ("train", "reset", "freeze")):
            of = [[figures[f"{features}.{way}.{name}_{epoch}"] for name in ("auc", "log_loss")] for epoch in (1, 2, 3)]
            assert line(log, features, way, *(f"{auc:.4f} / {loss:.4f}" for auc, loss in of)) in doc("training")


def test_the_documentation_shows_how_objectives_compare() -> None:
    figures, page = measured("objectives"), doc("objectives")
    methods = ("sparsegroup", "its_linear_baseline", "lightgbm", "catboost", "the_truth")
    targets = ("stars", "outliers", "90_quantile", "visits", "duration", "spend")
    keys = [(f"{name}_", "") for name in targets]
    keys += [("stars_as_classes_", "_relative_loss"), ("ranked_by_user_", "_ndcg@10")]
    for name, measure in keys:
        values = [figures.get(f"{name}{method}{measure}") for method in methods]
        cells = ["–" if value is None else f"{value:.3f}".removeprefix("0") for value in values]
        assert f" {line(*cells)}" in page, name
    for name in ("two_tables", "shared_bottom", "mmoe", "ple", "esmm"):
        click, buy, size = (figures[f"two_tasks_{name}_{of}"] for of in ("auc_of_click", "auc_of_buy", "mb"))
        assert f" | {click:.3f} | {buy:.3f} | {size:.2f} |".replace(" 0.", " .", 2) in page, name


def test_the_documentation_shows_how_columns_are_ranked() -> None:
    figures = measured("column_selection")
    rows = re.findall(r"^\| (`select`|[\w ']+).*\| ([\d.]+) \| ([\d.]+) \|$", doc("columns"), re.M)
    names = ("select", "permutation", "lasso", "live_rows", "group_lasso", "lightgbm_gain", "forest")
    shown = [
        [f"{figures[f'{name}_{what}']:.3f}".removeprefix("0") for what in ("recall", "auc_kept")] for name in names
    ]
    assert [list(cells) for _, *cells in rows] == shown


def test_the_documentation_shows_what_a_shared_vocabulary_gives() -> None:
    figures, page = measured("shared_vocabulary"), doc("models")
    cases = sorted({key.rpartition(", s")[0] for key in figures if ", s" in key})
    assert len(cases) == 5
    for case in cases:
        ways = [{one: figures.get(f"{case}, {way}, {one}") for one in WORTH} for way in ("separate", "shared")]
        cells = [f"{way['auc']:.4f} / {way['log_loss']:.4f}" for way in ways]
        cells += [f"{way[WORTH[2]]:.4f}" for way in ways if way[WORTH[2]] is not None]
        assert line(case.replace("_", r"\_"), *cells)[:-2] in page, case


WORTH = ("auc", "log_loss", "auc of new candidates")

LEVELS: dict[str, dict[str, tuple[float, ...]]] = {
    "race": {
        "synthetic": (0.76, 0.775, 0.78, 0.784, 0.7855, 0.788),
        "globo_clicks": (0.64, 0.65, 0.655, 0.66, 0.662, 0.665),
    },
    "race_one_core": {"synthetic": (0.7855, 0.788), "globo_clicks": (0.65, 0.66, 0.665)},
    "race_whole": {"synthetic": (0.775, 0.78, 0.783, 0.785, 0.7853, 0.7875)},
}


def firsts(figures: Mapping[str, Any], log: str, name: str, levels: Sequence[float]) -> list[str]:
    """The seconds until the AUCs are reached, and the highest."""
    points = [key.removesuffix(".auc") for key in figures if re.fullmatch(rf"{log}\.{name}\.\d+\.auc", key)]
    curve = [(figures[f"{point}.seconds"], figures[f"{point}.auc"]) for point in points]
    seconds = [next((f"{at:.0f}" for at, auc in curve if auc >= level), "–") for level in levels]
    return [*seconds, f"{max(auc for _, auc in curve):.4f}"]


def test_the_documentation_shows_who_reaches_an_auc_first() -> None:
    names = ("ours", "logistic", "vw", "DCN", "LightGBM", "CatBoost")
    for log, levels in LEVELS["race"].items():
        figures = measured("race")
        for name in names:
            assert f" {line(*firsts(figures, log, name, levels))}" in MEASURED, name
        assert f" {figures[f'{log}.ours_over_vw']:.1f} times" in joined(MEASURED)
    for benchmark, count in (("race_one_core", 5), ("race_whole", 4)):
        figures = measured(benchmark)
        for name in names[:count]:
            cells = [cell for log, of_log in LEVELS[benchmark].items() for cell in firsts(figures, log, name, of_log)]
            assert f" {line(*cells)}" in MEASURED, name
    assert figures["synthetic.ours_first_beyond_linear"] == 1
    assert f"{figures['synthetic.ours_over_vw']:.2f}".lstrip("0") + " of vw's seconds on 45.8M rows" in joined(MEASURED)


@pytest.mark.parametrize("log", ["avazu_sample", "criteo_sample"])
def test_the_documentation_shows_what_int8_leaves_room_for(log: str) -> None:
    figures, lines = measured(f"int8_size-{log}"), doc("measured-size").splitlines()
    found = [one for one in lines if one.startswith(f"| {log} |") and "times the bytes" in one]
    expected = []
    for budget in ("0.1", "0.03", "0.01"):
        ways = [f"{budget}.{way}" for way in ("float32", "int8", "int8_same_bytes", "int8_four_times")]
        aucs = [f"{figures[f'{way}.auc']:.4f}"[1:] for way in ways]
        shares = [f"{100 * figures[f'{way}.rate']:.3g} %" for way in ways]
        single, *_, four = (figures[f"{way}.bytes"] for way in ways)
        larger = f"{four / single:.2f} times the bytes, {shares[3]}: {aucs[3]}"
        same = f"{shares[2]}: {aucs[2]}"
        expected.append(line(log, f"{single:,.0f}", f"{shares[0]}: {aucs[0]}", aucs[1], same, larger))
    assert found == expected


def test_the_documentation_shows_that_bytes_by_field_are_no_better_than_shorter_vectors() -> None:
    figures, page = measured("field_split"), doc("size")
    contenders = [("one_dim", "today"), *((way, "one_dim") for way in ("by_size", "by_loss", "by_loss_rows", "rows"))]
    for share in (0.1, 0.03, 0.01, 0.003, 0.001):
        counts = [
            [figures[f"logs.{share:g}.{way}.loss_{word}_than_{base}"] for word in ("better", "worse")]
            for way, base in contenders
        ]
        assert line(f"{100 * share:g} %", *(f"{better} / {worse}" for better, worse in counts)) in page
    for log, share in (("criteo_shape", "0.03"), ("criteo_shape", "0.003"), ("criteo_shape", "0.001")):
        long, short = (f"{figures[f'{log}.{share}.{way}.auc']:.4f}"[1:] for way in ("today", "one_dim_1"))
        assert re.search(rf"{long} (with 8 numbers )?and {short}", joined(page))


def test_the_documentation_shows_what_each_form_is_worth_at_equal_bytes() -> None:
    aucs: dict[tuple[str, float], list[float | None]] = {}
    for path in (ROOT / "docs" / "results").glob("bytes-*/report.json"):
        tables = [one for section in json.loads(path.read_text())["sections"] for one in section["tables"]]
        points = next(one["rows"] for one in tables if one["name"] == "points")
        if not set(VARIANTS) <= {row[0] for row in points}:  # a long log, with fewer forms
            continue
        for row in points:
            if row[0] in VARIANTS:
                aucs.setdefault((row[0], row[2]), []).append(row[4])
    page = doc("equal-bytes")
    lines = page.splitlines()
    first = next(number for number, one in enumerate(lines) if one.startswith("| form |"))
    for one, name in zip(lines[first + 2 :], VARIANTS, strict=False):
        of_budgets = [aucs[name, share] for share in (0.1, 0.03, 0.01, 0.003, 0.001)]
        means = ["–" if None in of else f"{statistics.mean(auc for auc in of if auc):.4f}" for of in of_budgets]
        assert one.endswith(line(*means)), name
    rows = [
        [cell.strip() for cell in one.strip("|").split("|")]
        for one in doc("paper").splitlines()
        if one.startswith("| bytes-")
    ]
    page = joined(page)
    ahead = [float(fixed) - float(best) for *_, fixed, _, _, _, _, best, _ in rows]
    assert f"at {sum(gap > 0 for gap in ahead)} of {len(rows)} points" in page
    assert f"behind by {-min(ahead):.4f} at most" in page
    words = ("better", "within noise", "worse")
    for place, text in (
        (-1, "better at {} points, within noise at {}, and worse at {}"),
        (7, "better at {} of 30 points, within noise at {}, and worse at {}"),
    ):
        assert text.format(*(sum(row[place].split(",")[0] == word for row in rows) for word in words)) in page
    behind = max(float(row[6]) - float(row[3]) for row in rows if row[7] == "worse")
    assert f"worse at 2, by {behind:.4f} at most" in page


def test_the_documentation_shows_what_a_size_is_worth_on_a_long_log() -> None:
    figures, page = measured("size_at_scale"), doc("measured-size")
    everything = f"all features {figures['all_test_auc']:.5f}, with Group Adagrad {figures['all_adagrad_test_auc']:.5f}"
    assert everything.replace("0.", ".") in joined(page)
    names = ("lasso_constant", "lasso_asked", "recipe", "recipe_fallback", "recommended", "recommended_lasso")
    for number in range(3):
        aucs = [figures[f"{name}_{number}_test_auc"] for name in names]
        aucs.append(max(figures[f"pruned_tuned_{share}_{number}_test_auc"] for share in ("0%", "10%")))
        rate = f"{100 * figures[f'lasso_constant_{number}_feature_rate']:.2f} %"
        assert line(rate, *(f"{auc:.5f}"[1:] for auc in aucs)) in page


def test_the_documentation_shows_what_memory_comes_to() -> None:
    figures, page = measured("memory"), doc("memory")
    names = [key.removesuffix("_test_auc") for key in figures if key.endswith("_test_auc")]
    assert len(names) == 10
    for name in names:
        auc, rate, speed = (figures[f"{name}_{key}"] for key in ("test_auc", "feature_rate", "samples_per_s"))
        parts = ("table_bytes_at_25%", "table_bytes_at_50%", "most_table_bytes", "peak_bytes")
        sizes = [f"{figures[f'{name}_{part}'] / 1e6:,.0f}" for part in parts]
        share = f"{speed / figures['all_samples_per_s']:.2f}"
        assert f" {line(f'{auc:.4f}', f'{rate:.4f}', *sizes, share)}" in page, name


def test_the_readme_and_the_table_show_how_it_does_out_of_the_box() -> None:
    folder = ROOT / "docs" / "results" / "out-of-the-box"
    results, page = json.loads((folder / "results.json").read_text()), (folder / "index.md").read_text()
    for name in ("criteo_sample", "avazu_sample", "ipinyou_sample", "nycflights13", "globo_clicks", "clicks"):
        ours = results[name]["methods"]["sparsegroup"]
        assert f"| sparsegroup | {ours['auc']:.4f} | {ours['log_loss']:.4f} |" in page
    methods = results["clicks"]["methods"]
    ours, possible = methods["sparsegroup"], results["clicks"]["best_possible"]
    for words in (
        *(f"{method['auc']:.4f}" for method in methods.values()),
        f"{ours['features']:,.0f} of the",
        f"calibration of {ours['calibration']:.2f}",
        f"{possible['auc']:.4f}",
    ):
        assert words in joined(doc("README"))


def test_one_command_makes_all_results() -> None:
    folder = ROOT / "benchmarks"
    benchmarks = runpy.run_path(str(folder / "__main__.py"))["BENCHMARKS"]
    assert {path.stem for path in RESULTS.glob("*.json")} <= benchmarks.keys()
    assert all((folder / script).exists() for script, *_ in benchmarks.values())
