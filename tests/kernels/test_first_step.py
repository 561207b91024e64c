"""What comes before the first step: kernels and imports, no more than are needed, and none of them twice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
TRIAL = ROOT / "benchmarks" / "first_step_trial.py"
LATER = ("torch._dynamo", "sklearn", "matplotlib.figure", "pandas", "numba.np.arrayobj", "numba.np.linalg")
"""What a warm first step does without; each takes a tenth of a second to a whole one."""


def started(cache: Path, text: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.Popen(
        [sys.executable, "-c", text], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def output(process: "subprocess.Popen[str]") -> tuple[str, str]:
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out, err


EXAMPLE = f"""
import sys
sys.path.insert(0, {str(TRIAL.parent)!r})
from first_step_trial import example
example()
print(*(name for name in {LATER} if name in sys.modules))
"""


def test_the_readme_example_compiles_one_kernel_and_the_next_process_none_of_them(tmp_path: Path) -> None:
    output(started(tmp_path, EXAMPLE))
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")}
    assert len([path for path in kept if path.suffix == ".nbc"]) == 1
    printed, told = output(started(tmp_path, EXAMPLE))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")} == kept
    assert printed.split() == []
    assert "compiling" not in told


@pytest.mark.slow
def test_two_processes_that_find_no_kernels_both_compile_them(tmp_path: Path) -> None:
    for process in [started(tmp_path, EXAMPLE) for _ in range(2)]:
        output(process)
    assert output(started(tmp_path, EXAMPLE))[0].split() == []


TABLE = f"""
import sys, torch
from sparsegroup import GroupAdam, HashEmbedding
table = HashEmbedding(4, seed=1)
optimizer = GroupAdam(table.parameters(), lr=0.1)
table(torch.arange(20)).sum().backward()
optimizer.step()
print(table(torch.arange(20)).tolist())
print(*(name for name in {LATER} if name in sys.modules))
"""


@pytest.mark.slow
def test_a_table_steps_to_the_same_bits_with_kernels_from_the_cache_without_what_compiling_imports(
    tmp_path: Path,
) -> None:
    compiled, _ = output(started(tmp_path, TABLE))
    count = len(list(tmp_path.rglob("*.nbc")))
    loaded, _ = output(started(tmp_path, TABLE))
    assert len(list(tmp_path.rglob("*.nbc"))) == count
    assert loaded.splitlines()[0] == compiled.splitlines()[0]
    assert loaded.splitlines()[1].split() == []


WIDTHS = """
import torch
from sparsegroup import GroupAdam
for width, l21 in {kinds}:
    weight = torch.nn.Parameter(torch.ones(3, width))
    weight.grad = torch.ones(3, width)
    GroupAdam([weight], lr=0.1, l21=l21).step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "names"),
    [
        ([(700, 0.0), (7, 0.0)], ["step"]),
        ([(700, 0.1)], ["shrink_groups", "step", "weigh_elements"]),
        ([(7, 0.1)], ["shrink_groups", "step", "weigh_elements"]),
    ],
)
def test_a_step_compiles_one_kernel_whatever_the_width(
    kinds: list[tuple[int, float]], names: list[str], tmp_path: Path
) -> None:
    output(started(tmp_path, WIDTHS.format(kinds=kinds)))
    assert sorted(path.name.split(".")[1].rpartition("_")[0] for path in tmp_path.rglob("*.nbc")) == names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "count"),
    [
        (["train", "{log}", "--out", "{folder}"], 6),
        (["train", "{log}", "--out", "{folder}", "--l21", "1e-4"], 9),  # with the norm's and the penalty's
        (["demo", "--rows", "5000"], 6),
    ],
)
def test_a_command_compiles_the_kernels_that_its_first_step_calls(
    command: list[str], count: int, tmp_path: Path
) -> None:
    log, cache = tmp_path / "log.csv", tmp_path / "cache"
    log.write_text("\n".join(["clicked,ad", *(f"{i % 2},{i % 5}" for i in range(1_000))]) + "\n")
    words = [word.format(log=log, folder=tmp_path / "run") for word in command]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, TRIAL, *words], env=environment, check=True, capture_output=True)
    names = [path.name.split(".")[1] for path in cache.rglob("*.nbc")]
    assert len(names) == count, names


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "first_step.py", "--quick", "--json", figures], check=True, cwd=tmp_path
    )
    found = json.loads(figures.read_text())
    assert (found["readme_cold_kernels"], found["readme_warm_kernels"]) == (1, 0)
    assert found["readme_warm_cpu"] < found["readme_cold_cpu"]


def test_the_documentation_shows_the_measured_first_step() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "first_step.json").read_text())
    page = (ROOT / "docs" / "measured.md").read_text()
    for name in ("readme", "demo", "train"):
        cells = [f"{figures[f'{name}_cold_{one}']:.2f}" for one in ("seconds", "cpu")]
        cells += [f"{figures[f'{name}_{one}']:.0f}" for one in ("cold_kernels", "compiling_mb")]
        cells += [f"{figures[f'{name}_warm_{one}']:.2f}" for one in ("seconds", "cpu")]
        assert f" | {' | '.join(cells)} |" in page
        assert figures[f"{name}_warm_kernels"] == 0
    for name in ("import_torch", "import_sparsegroup", "help"):
        assert f"{figures[f'{name}_cpu']:.2f} s" in " ".join(page.split())
