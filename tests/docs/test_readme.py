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

from sparsegroup_paper.equal_bytes.ours import VARIANTS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
README = (ROOT / "README.md").read_text()
MEASURED = (ROOT / "docs" / "measured.md").read_text()
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
    return (ROOT / "docs" / f"{name}.md").read_text()


def joined(page: str) -> str:
    """A page as one line."""
    return " ".join(page.split())


def line(*cells: str) -> str:
    """A line of a table, or its last cells."""
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_runs_as_printed(code: str) -> None:
    exec(compile(code, "example", "exec"), {"__name__": "__main__"})


def test_the_readme_example_keeps_the_features_that_matter(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    printed = re.fullmatch(r"loss ([\d.]+), feature rate ([\d.]+)\n", capsys.readouterr().out)
    assert printed is not None
    assert float(printed[1]) < 0.2
    assert printed[2] == "0.050"


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


def test_the_documentation_shows_the_measured_speed() -> None:
    table, step, growth, epoch = map(measured, ("table_step", "optimizer_step", "table_growth", "epoch"))
    for name in ("sparse_adam", "fbgemm", "fbgemm_sequence", "dense_adam"):
        figures = [table[f"{key}_{name}{pages}"] for pages in ("", "_small_pages") for key in ("ms", "speedup_vs")]
        assert line(*(f"{figure:.2f}" for figure in figures)) in MEASURED
    assert f"| {table['ms_per_batch']:.2f} | 1 | {table['ms_per_batch_small_pages']:.2f} | 1 |" in MEASURED
    for kind in ("unregularized", "regularized"):
        ratios = (step[f"{of}_ratio_{kind}"] for of in ("dense", "small_tensors"))
        assert line(*(f"{ratio:.2f}" for ratio in ratios)) in MEASURED
    assert f"{growth['bytes_per_row']:.0f} bytes per row" in MEASURED
    for name in ("", "_slice", "_39_fields", "_raw", "_8192"):
        assert f"| {epoch[f'samples_per_s{name}']:,.0f} |" in MEASURED
    for name, digits in (("sparse_adam", 2), ("dense_adam", 0), ("sparse_adam_8192", 2)):
        ratio = f"ratio {epoch[f'speedup_vs_{name}']:.{digits}f}"
        assert line(f"{epoch[f'samples_per_s_{name}']:,.0f}", ratio) in MEASURED


def test_the_documentation_shows_how_fast_exports_score() -> None:
    figures = measured("scoring")
    for name in ("float32_full", "int8_full", "int4_fingerprints"):
        speeds = [f"{figures[f'{name}{part}']:,.0f}" for part in ("", "_operators")]
        ratios = [f"{figures[f'{name}{part}']:.2f}" for part in ("_over_operators", "_over_training")]
        assert line(*speeds, *ratios) in MEASURED


def firsts(figures: Mapping[str, Any], log: str, name: str, levels: Sequence[float]) -> list[str]:
    """The seconds until the AUCs are reached, and the highest."""
    points = [key.removesuffix(".auc") for key in figures if re.fullmatch(rf"{log}\.{name}\.\d+\.auc", key)]
    curve = [(figures[f"{point}.seconds"], figures[f"{point}.auc"]) for point in points]
    seconds = [next((f"{at:.0f}" for at, auc in curve if auc >= level), "–") for level in levels]
    return [*seconds, f"{max(auc for _, auc in curve):.4f}"]


LEVELS = {
    "synthetic": (0.76, 0.775, 0.78, 0.784, 0.7855, 0.788),
    "globo_clicks": (0.64, 0.65, 0.655, 0.66, 0.662, 0.665),
}


@pytest.mark.parametrize("log", LEVELS)
def test_the_documentation_shows_who_reaches_an_auc_first(log: str) -> None:
    figures = measured("race")
    for name in ("ours", "logistic", "vw", "LightGBM", "CatBoost", "DCN"):
        assert f" {line(*firsts(figures, log, name, LEVELS[log]))}" in MEASURED, name
    ratio = f"{figures[f'{log}.ours_over_vw']:.1f}"
    assert f" {ratio} times" in joined(MEASURED)


def test_the_documentation_shows_the_race_on_one_core() -> None:
    figures = measured("race_one_core")
    levels = {"synthetic": (0.7855, 0.788), "globo_clicks": (0.65, 0.66, 0.665)}
    for name in ("ours", "logistic", "vw", "LightGBM", "DCN"):
        cells = [cell for log, of_log in levels.items() for cell in firsts(figures, log, name, of_log)]
        assert f" {line(*cells)}" in MEASURED, name


def test_the_documentation_shows_the_race_on_all_rows() -> None:
    figures = measured("race_whole")
    for name in ("ours", "logistic", "vw", "DCN"):
        assert f" {line(*firsts(figures, 'synthetic', name, (0.775, 0.78, 0.783, 0.785, 0.7853, 0.7875)))}" in MEASURED
    assert figures["synthetic.ours_first_beyond_linear"] == 1
    assert f"{figures['synthetic.ours_over_vw']:.2f}".lstrip("0") + " of vw's seconds on 45.8M rows" in joined(MEASURED)


def test_the_documentation_shows_the_measured_serving() -> None:
    figures, text = measured("serving"), joined(MEASURED)
    for name in ("sparse", "int8", "full", "dense_ids"):
        single = [f"{figures[f'{name}_batch_1_{quantile}_ms']:.3f}" for quantile in ("p50", "p99")]
        many = [f"{figures[f'{name}_batch_512_{quantile}_ms']:.2f}" for quantile in ("p50", "p99")]
        speed, load = figures[f"{name}_batch_512_samples_per_s"], figures[f"{name}_load_ms"]
        assert line(*single, *many, f"{speed:,.0f}", f"{load:,.0f}") in MEASURED
    for name in ("write", "read"):
        speed, ratio = figures[f"checkpoint_{name}_gb_per_s"], figures[f"checkpoint_{name}_over_copy"]
        assert f"at {speed:.2f} GB/s, {ratio:.2f} of" in text
    for kind in ("float32", "int8"):
        assert f"{100 * figures[f'{kind}_embeddings_bytes_over_dense']:.2f} %" in text
    assert f"trains again after {figures['resume_seconds']:.1f} s" in text


def test_the_documentation_shows_what_a_target_costs() -> None:
    figures, text = measured("table_step"), joined(doc("measured-size"))
    for words in (
        f"{figures['target_ms_sample_65536']:.2f} ms for a sample",
        f"{figures['target_ms_sample_8192']:.2f} ms for the 8,192",
        *(f"{figures[f'target_ms_{name}'] / 1e3:.1f} s to" for name in ("all_rows", "sweep")),
        f"{100 * figures['target_share_of_pass']:.2f} % of a pass of 88,000 steps",
        f"{figures['target_ms_step']:.2f} ms for the table",
    ):
        assert words in text


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


def test_the_documentation_shows_what_exports_without_keys_cost() -> None:
    figures, page = measured("compact_export"), doc("measured-size")
    for name in ("int8_full", "int8_fp", "int4_fp", "pq2_fp", "pq4_fp", "int4_as_pq4_fp"):
        of_logs = (f"{log}.{name}" for log in ("avazu_sample", "criteo_sample", "synthetic"))
        cells = (f"{figures[f'{of}.bytes_a_row']:.1f}, {figures[f'{of}.auc_gap']:+.5f}" for of in of_logs)
        assert line(*cells).replace("-", "−") in page, name
    ratios = [
        figures[f"speed.{name}.batch_{size}_over_float32_full"] for size in (1, 512) for name in ("int8_fp", "int4_fp")
    ]
    text = (
        "takes {:.2f} times as long in int8 and {:.2f} times in int4 as in float32 with whole keys for one row, "
        "and {:.2f} and {:.2f} times"
    )
    assert text.format(*ratios) in joined(page)


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


def test_the_readme_sums_up_what_is_measured() -> None:
    table, epoch, serving = map(measured, ("table_step", "epoch", "serving"))
    for words in (
        f"a table's step 2.7 to {table['speedup_vs_sparse_adam']:.1f} times as fast as `SparseAdam`",
        f"{epoch['samples_per_s']:,.0f} samples/s on two cores",
        f"{epoch['speedup_vs_sparse_adam']:.1f} to {epoch['speedup_vs_sparse_adam_8192']:.1f} times as fast as with",
        f"{serving['sparse_batch_1_p50_ms']:.3f} ms a sample",
    ):
        assert words in joined(README)


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
        assert words in joined(README)


def test_one_command_makes_all_results() -> None:
    folder = ROOT / "benchmarks"
    benchmarks = runpy.run_path(str(folder / "__main__.py"))["BENCHMARKS"]
    assert {path.stem for path in RESULTS.glob("*.json")} <= benchmarks.keys()
    assert all((folder / script).exists() for script, *_ in benchmarks.values())


def test_the_documentation_shows_what_continuous_training_is_worth_and_costs() -> None:
    freshness, speed, replay = map(measured, ("freshness", "continuous", "replay"))
    page = doc("continuous")
    for age in ("each batch", "1 min", "10 min", "1 h", "6 h", "1 day"):
        keys = [f"{log}_{age.replace(' ', '_')}" for log in ("news", "globo_clicks", "made_up")]
        assert line(age, *(f"{freshness[f'{key}_{of}']:.4f}" for key in keys for of in ("auc", "log_loss"))) in page
    logs = ("made_up", "globo_clicks")
    for log in logs:
        for part, names in (
            ("fast", ("p50_ms", "p99_ms")),
            ("slow", ("stale_p50_s", "stale_p99_s", "p50_ms", "p99_ms")),
        ):
            assert line(*(f"{replay[f'{log}_{part}_{name}']:.1f}" for name in names)) in page
    requests, failed = (sum(replay[f"{log}_{of}"] for log in logs) for of in ("requests", "failed"))
    for words in (
        *(
            f"{speed[f'{name}_samples_per_s']:,.0f} samples/s, {speed[f'{name}_ratio']:.2f} times"
            for name in ("follow", "follow_publishing")
        ),
        *(f"{speed[f'resident_mb_{share}']:,.0f} MB" for share in (10, 50, 100)),
        f"{failed:,.0f} of {requests:,.0f} requests failed",
    ):
        assert words in joined(page)


def test_the_documentation_shows_what_a_server_takes() -> None:
    figures = measured("server")
    for words in (
        f"{figures['failed']:,.0f} of {figures['requests']:,.0f} requests failed",
        *(f"p{share} {figures[f'quiet_p{share}_ms']:.1f}" for share in (50, 95, 99)),
        *(f" and {figures[f'swapping_p{share}_ms']:.1f}" for share in (50, 95, 99)),
        f"{figures['stale_p99_s']:.2f} s (p99)",
        ", ".join(f"{figures[f'known_{rows}_p50_ms']:.1f}" for rows in (1, 32)),
    ):
        assert words in joined(doc("serving"))
