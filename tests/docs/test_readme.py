"""What README and docs print runs as printed, and the figures in the docs are those that the benchmarks wrote."""

import json
import re
import runpy
import statistics
from itertools import product
from pathlib import Path

import pytest

from sparsegroup_paper.equal_bytes.ours import VARIANTS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MEASURED = (ROOT / "docs" / "measured.md").read_text()
EXAMPLES = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in sorted((ROOT / "docs").glob("*.md"))
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))
    if "--8<--" not in code  # an included file, which has a test of its own
]


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
    figures = json.loads((ROOT / "benchmarks" / "results" / "row_state.json").read_text())
    page = (ROOT / "docs" / "memory.md").read_text()
    for name in ("adam", "adam_bfloat16", "adagrad", "adagrad_bfloat16", "rowwise_adagrad"):
        row = f"| {figures[f'{name}.row_bytes']:.0f} | {figures[f'{name}.bytes_per_row']:.0f} "
        row += f"| {figures[f'{name}.step_ms']:.2f} |"
        for log in ("criteo_sample", "avazu_sample", "globo_clicks"):
            auc, loss, bias = (figures[f"{log}.{name}.{one}"] for one in ("auc", "log_loss", "calibration"))
            row += f" {auc:.4f} / {loss:.4f} / {bias:.2f} |".replace(" 0.", " .")
        assert row in page, name


def test_the_documentation_shows_what_later_epochs_do() -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    for path in sorted((ROOT / "benchmarks" / "results").glob("epochs-*.json")):
        log = path.stem.removeprefix("epochs-")
        figures = json.loads(path.read_text())
        for features, way in product(("all", "0.1"), ("train", "reset", "freeze")):
            of = [[figures[f"{features}.{way}.{name}_{epoch}"] for name in ("auc", "log_loss")] for epoch in (1, 2, 3)]
            cells = [f"{auc:.4f} / {loss:.4f}" for auc, loss in of]
            assert f"| {' | '.join([log, features, way, *cells])} |" in page


def test_the_documentation_shows_how_objectives_compare() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "objectives.json").read_text())
    page = (ROOT / "docs" / "objectives.md").read_text()
    methods = ("sparsegroup", "its_linear_baseline", "lightgbm", "catboost", "the_truth")
    targets = ("stars", "outliers", "90_quantile", "visits", "duration", "spend")
    keys = [(f"{name}_", "") for name in targets]
    keys += [("stars_as_classes_", "_relative_loss"), ("ranked_by_user_", "_ndcg@10")]
    for name, measure in keys:
        values = [figures.get(f"{name}{method}{measure}") for method in methods]
        cells = ["–" if value is None else f"{value:.3f}".removeprefix("0") for value in values]
        assert f" | {' | '.join(cells)} |" in page, name
    for name in ("two_tables", "shared_bottom", "mmoe", "ple", "esmm"):
        click, buy, size = (figures[f"two_tasks_{name}_{of}"] for of in ("auc_of_click", "auc_of_buy", "mb"))
        assert f" | {click:.3f} | {buy:.3f} | {size:.2f} |".replace(" 0.", " .", 2) in page, name


def test_the_documentation_shows_how_columns_are_ranked() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "column_selection.json").read_text())
    rows = re.findall(
        r"^\| (`select`|[\w ']+).*\| ([\d.]+) \| ([\d.]+) \|$", (ROOT / "docs" / "columns.md").read_text(), re.M
    )
    names = ("select", "permutation", "lasso", "live_rows", "group_lasso", "lightgbm_gain", "forest")
    shown = [
        [f"{figures[f'{name}_{what}']:.3f}".removeprefix("0") for what in ("recall", "auc_kept")] for name in names
    ]
    assert [list(cells) for _, *cells in rows] == shown


def test_the_documentation_shows_the_measured_speed() -> None:
    results = ROOT / "benchmarks" / "results"
    table = json.loads((results / "table_step.json").read_text())
    for name in ("sparse_adam", "fbgemm", "fbgemm_sequence", "dense_adam"):
        figures = [table[f"{key}_{name}{pages}"] for pages in ("", "_small_pages") for key in ("ms", "speedup_vs")]
        assert "| " + " | ".join(f"{figure:.2f}" for figure in figures) + " |" in MEASURED
    assert f"| {table['ms_per_batch']:.2f} | 1 | {table['ms_per_batch_small_pages']:.2f} | 1 |" in MEASURED
    step = json.loads((results / "optimizer_step.json").read_text())
    for kind in ("unregularized", "regularized"):
        assert f"| {step[f'dense_ratio_{kind}']:.2f} | {step[f'small_tensors_ratio_{kind}']:.2f} |" in MEASURED
    growth = json.loads((results / "table_growth.json").read_text())
    assert f"{growth['bytes_per_row']:.0f} bytes per row" in MEASURED
    epoch = json.loads((results / "epoch.json").read_text())
    for name in ("", "_slice", "_39_fields", "_raw", "_8192"):
        assert f"| {epoch[f'samples_per_s{name}']:,.0f} |" in MEASURED
    for name, digits in (("sparse_adam", 2), ("dense_adam", 0), ("sparse_adam_8192", 2)):
        line = f"| {epoch[f'samples_per_s_{name}']:,.0f} | ratio {epoch[f'speedup_vs_{name}']:.{digits}f} |"
        assert line in MEASURED


def test_the_documentation_shows_how_fast_exports_score() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "scoring.json").read_text())
    for name in ("float32_full", "int8_full", "int4_fingerprints"):
        speeds = [f"{figures[f'{name}{part}']:,.0f}" for part in ("", "_operators")]
        ratios = [f"{figures[f'{name}{part}']:.2f}" for part in ("_over_operators", "_over_training")]
        assert f"| {' | '.join([*speeds, *ratios])} |" in MEASURED


def test_the_documentation_shows_the_measured_serving() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "serving.json").read_text())
    for name in ("sparse", "int8", "full", "dense_ids"):
        single = [f"{figures[f'{name}_batch_1_{quantile}_ms']:.3f}" for quantile in ("p50", "p99")]
        many = [f"{figures[f'{name}_batch_512_{quantile}_ms']:.2f}" for quantile in ("p50", "p99")]
        speed, load = figures[f"{name}_batch_512_samples_per_s"], figures[f"{name}_load_ms"]
        assert f"| {' | '.join([*single, *many])} | {speed:,.0f} | {load:,.0f} |" in MEASURED
    text = " ".join(MEASURED.split())
    for name in ("write", "read"):
        speed, ratio = figures[f"checkpoint_{name}_gb_per_s"], figures[f"checkpoint_{name}_over_copy"]
        assert f"at {speed:.2f} GB/s, {ratio:.2f} of" in text
    for kind in ("float32", "int8"):
        assert f"{100 * figures[f'{kind}_embeddings_bytes_over_dense']:.2f} %" in text
    assert f"trains again after {figures['resume_seconds']:.1f} s" in text


def test_the_documentation_shows_what_a_target_costs() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "table_step.json").read_text())
    text = " ".join((ROOT / "docs" / "measured-size.md").read_text().split())
    for ms in (
        f"{figures['target_ms_sample_65536']:.2f} ms for a sample",
        f"{figures['target_ms_sample_8192']:.2f} ms for the 8,192",
    ):
        assert ms in text
    for name in ("all_rows", "sweep"):
        assert f"{figures[f'target_ms_{name}'] / 1e3:.1f} s to" in text
    assert f"{100 * figures['target_share_of_pass']:.2f} % of a pass of 88,000 steps" in text
    assert f"{figures['target_ms_step']:.2f} ms for the table" in text


@pytest.mark.parametrize("log", ["avazu_sample", "criteo_sample"])
def test_the_documentation_shows_what_int8_leaves_room_for(log: str) -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / f"int8_size-{log}.json").read_text())
    lines = (ROOT / "docs" / "measured-size.md").read_text().splitlines()
    found = [line for line in lines if line.startswith(f"| {log} |") and "times the bytes" in line]
    expected = []
    for budget in ("0.1", "0.03", "0.01"):
        ways = [f"{budget}.{way}" for way in ("float32", "int8", "int8_same_bytes", "int8_four_times")]
        aucs = [f"{figures[f'{way}.auc']:.4f}"[1:] for way in ways]
        shares = [f"{100 * figures[f'{way}.rate']:.3g} %" for way in ways]
        single, *_, four = (figures[f"{way}.bytes"] for way in ways)
        larger = f"{four / single:.2f} times the bytes, {shares[3]}: {aucs[3]}"
        cells = f"{shares[0]}: {aucs[0]} | {aucs[1]} | {shares[2]}: {aucs[2]} | {larger}"
        expected.append(f"| {log} | {single:,.0f} | {cells} |")
    assert found == expected


def test_the_documentation_shows_that_bytes_by_field_are_no_better_than_shorter_vectors() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "field_split.json").read_text())
    page = (ROOT / "docs" / "size.md").read_text()
    contenders = [("one_dim", "today"), *((way, "one_dim") for way in ("by_size", "by_loss", "by_loss_rows", "rows"))]
    for share in (0.1, 0.03, 0.01, 0.003, 0.001):
        counts = [
            [figures[f"logs.{share:g}.{way}.loss_{word}_than_{base}"] for word in ("better", "worse")]
            for way, base in contenders
        ]
        cells = " | ".join(f"{better} / {worse}" for better, worse in counts)
        assert f"| {100 * share:g} % | {cells} |" in page
    for log, share in (("criteo_shape", "0.03"), ("criteo_shape", "0.003"), ("criteo_shape", "0.001")):
        long, short = (f"{figures[f'{log}.{share}.{way}.auc']:.4f}"[1:] for way in ("today", "one_dim_1"))
        assert re.search(rf"{long} (with 8 numbers )?and {short}", " ".join(page.split()))


def test_the_documentation_shows_what_each_form_is_worth_at_equal_bytes() -> None:
    aucs: dict[tuple[str, float], list[float | None]] = {}
    for path in (ROOT / "docs" / "results").glob("bytes-*/report.json"):
        tables = [one for section in json.loads(path.read_text())["sections"] for one in section["tables"]]
        for row in next(one["rows"] for one in tables if one["name"] == "points"):
            if row[0] in VARIANTS:
                aucs.setdefault((row[0], row[2]), []).append(row[4])
    lines = (ROOT / "docs" / "equal-bytes.md").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| form |"))
    for line, name in zip(lines[first + 2 :], VARIANTS, strict=False):
        of_budgets = [aucs[name, share] for share in (0.1, 0.03, 0.01, 0.003, 0.001)]
        means = ["–" if None in of else f"{statistics.mean(one for one in of if one):.4f}" for of in of_budgets]
        assert line.endswith(f"| {' | '.join(means)} |"), name
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "paper.md").read_text().splitlines()
        if line.startswith("| bytes-")
    ]
    page = " ".join(" ".join(lines).split())
    ahead = [float(fixed) - float(best) for *_, fixed, _, _, _, _, best, _ in rows]
    assert f"at {sum(gap > 0 for gap in ahead)} of {len(rows)} points" in page
    assert f"behind by {-min(ahead):.4f} at most" in page
    words = ("better", "within noise", "worse")
    for place, text in (
        (-1, "better at {} points, within noise at {}, and worse at {}"),
        (7, "better at {} of 25 points, within noise at {}, and worse at {}"),
    ):
        assert text.format(*(sum(row[place].split(",")[0] == word for row in rows) for word in words)) in page
    behind = max(float(row[6]) - float(row[3]) for row in rows if row[7] == "worse")
    assert f"worse at 2, by {behind:.4f} at most" in page


def test_the_documentation_shows_what_exports_without_keys_cost() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "compact_export.json").read_text())
    page = (ROOT / "docs" / "measured-size.md").read_text()
    logs = ("avazu_sample", "criteo_sample", "synthetic")
    for name in ("int8_full", "int8_fp", "int4_fp", "pq2_fp", "pq4_fp", "int4_as_pq4_fp"):
        cells = [
            f"{figures[f'{log}.{name}.bytes_a_row']:.1f}, {figures[f'{log}.{name}.auc_gap']:+.5f}".replace("-", "−")
            for log in logs
        ]
        assert f"| {' | '.join(cells)} |" in page, name
    ratios = [
        figures[f"speed.{name}.batch_{size}_over_float32_full"] for size in (1, 512) for name in ("int8_fp", "int4_fp")
    ]
    text = (
        "takes {:.2f} times as long in int8 and {:.2f} times in int4 as in float32 with whole keys for one row, "
        "and {:.2f} and {:.2f} times"
    )
    assert text.format(*ratios) in " ".join(page.split())


def test_the_documentation_shows_what_a_size_is_worth_on_a_long_log() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "size_at_scale.json").read_text())
    page = (ROOT / "docs" / "measured-size.md").read_text()
    everything = f"all features {figures['all_test_auc']:.5f}, with Group Adagrad {figures['all_adagrad_test_auc']:.5f}"
    assert everything.replace("0.", ".") in " ".join(page.split())
    for number in range(3):
        aucs = [
            figures[f"{name}_{number}_test_auc"]
            for name in (
                "lasso_constant",
                "lasso_asked",
                "recipe",
                "recipe_fallback",
                "recommended",
                "recommended_lasso",
            )
        ]
        aucs.append(max(figures[f"pruned_tuned_{share}_{number}_test_auc"] for share in ("0%", "10%")))
        cells = " | ".join(f"{auc:.5f}"[1:] for auc in aucs)
        assert f"| {100 * figures[f'lasso_constant_{number}_feature_rate']:.2f} % | {cells} |" in page


def test_the_documentation_shows_what_memory_comes_to() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "memory.json").read_text())
    page = (ROOT / "docs" / "memory.md").read_text()
    names = [key.removesuffix("_test_auc") for key in figures if key.endswith("_test_auc")]
    assert len(names) == 10
    for name in names:
        auc, rate, speed = (figures[f"{name}_{key}"] for key in ("test_auc", "feature_rate", "samples_per_s"))
        parts = ("table_bytes_at_25%", "table_bytes_at_50%", "most_table_bytes", "peak_bytes")
        sizes = " | ".join(f"{figures[f'{name}_{part}'] / 1e6:,.0f}" for part in parts)
        assert f" | {auc:.4f} | {rate:.4f} | {sizes} | {speed / figures['all_samples_per_s']:.2f} |" in page, name


def test_the_readme_sums_up_what_is_measured() -> None:
    results = ROOT / "benchmarks" / "results"
    table, epoch, serving = (
        json.loads((results / f"{name}.json").read_text()) for name in ("table_step", "epoch", "serving")
    )
    text = " ".join(README.split())
    assert f"a table's step {table['speedup_vs_sparse_adam']:.1f} times as fast as `SparseAdam`" in text
    assert f"{epoch['samples_per_s']:,.0f} samples/s on two cores" in text
    assert f"{serving['sparse_batch_1_p50_ms']:.3f} ms a sample" in text


def test_the_readme_and_the_table_show_how_it_does_out_of_the_box() -> None:
    folder = ROOT / "docs" / "results" / "out-of-the-box"
    results = json.loads((folder / "results.json").read_text())
    page = (folder / "index.md").read_text()
    logs = {"criteo_sample", "avazu_sample", "ipinyou_sample", "nycflights13", "globo_clicks", "clicks"}
    assert logs <= results.keys()
    for name in logs:
        ours = results[name]["methods"]["sparsegroup"]
        assert f"| sparsegroup | {ours['auc']:.4f} | {ours['log_loss']:.4f} |" in page
    methods = results["clicks"]["methods"]
    text = " ".join(README.split())
    for method in methods.values():
        assert f"{method['auc']:.4f}" in text
    ours, possible = methods["sparsegroup"], results["clicks"]["best_possible"]
    assert f"{ours['features']:,.0f} of the" in text
    assert f"calibration of {ours['calibration']:.2f}" in text
    assert f"{possible['auc']:.4f}" in text


def test_one_command_makes_all_results() -> None:
    folder = ROOT / "benchmarks"
    benchmarks = runpy.run_path(str(folder / "__main__.py"))["BENCHMARKS"]
    assert {path.stem for path in (folder / "results").glob("*.json")} <= benchmarks.keys()
    assert all((folder / script).exists() for script, *_ in benchmarks.values())


def test_the_documentation_shows_what_continuous_training_is_worth_and_costs() -> None:
    results = ROOT / "benchmarks" / "results"
    read = {name: json.loads((results / f"{name}.json").read_text()) for name in ("freshness", "continuous", "replay")}
    page = (ROOT / "docs" / "continuous.md").read_text()
    text = " ".join(page.split())
    for age in ("each batch", "1 min", "10 min", "1 h", "6 h", "1 day"):
        keys = [f"{log}_{age.replace(' ', '_')}" for log in ("news", "globo_clicks", "made_up")]
        cells = [f"{read['freshness'][f'{key}_{of}']:.4f}" for key in keys for of in ("auc", "log_loss")]
        assert f"| {age} | {' | '.join(cells)} |" in page
    speed = read["continuous"]
    for name in ("follow", "follow_publishing"):
        assert f"{speed[f'{name}_samples_per_s']:,.0f} samples/s, {speed[f'{name}_ratio']:.2f} times" in text
    for share in (10, 50, 100):
        assert f"{speed[f'resident_mb_{share}']:,.0f} MB" in text
    for log in ("made_up", "globo_clicks"):
        for part, names in (
            ("fast", ("p50_ms", "p99_ms")),
            ("slow", ("stale_p50_s", "stale_p99_s", "p50_ms", "p99_ms")),
        ):
            found = [read["replay"][f"{log}_{part}_{name}"] for name in names]
            assert f"| {' | '.join(f'{value:.1f}' for value in found)} |" in page
    requests, failed = (
        sum(read["replay"][f"{log}_{of}"] for log in ("made_up", "globo_clicks")) for of in ("requests", "failed")
    )
    assert f"{failed:,.0f} of {requests:,.0f} requests failed" in text


def test_the_documentation_shows_what_a_server_takes() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "server.json").read_text())
    text = " ".join((ROOT / "docs" / "serving.md").read_text().split())
    assert f"{figures['failed']:,.0f} of {figures['requests']:,.0f} requests failed" in text
    for share in (50, 95, 99):
        assert f"p{share} {figures[f'quiet_p{share}_ms']:.1f}" in text
        assert f" and {figures[f'swapping_p{share}_ms']:.1f}" in text
    assert f"{figures['stale_p99_s']:.2f} s (p99)" in text
    assert ", ".join(f"{figures[f'known_{rows}_p50_ms']:.1f}" for rows in (1, 32)) in text
