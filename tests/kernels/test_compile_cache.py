"""What comes before the first step: kernels and imports, no more than are needed, compiled once and kept on disk."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest
from numba import njit
from numba.core.codegen import JITCodeLibrary

from sparsegroup.kernels.cpu import jit
from sparsegroup.kernels.cpu.jit import kernel_digest

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
TRIAL = ROOT / "benchmarks" / "first_step_trial.py"
LATER = ("torch._dynamo", "sklearn", "matplotlib.figure", "pandas", "numba.np.arrayobj", "numba.np.linalg")
"""What a warm first step does without; each takes a tenth of a second to a whole one."""


def printed(cache: Path, *program: str | Path, **environment: str) -> tuple[str, str]:
    """On standard output and standard error, by another Python whose kernels are in `cache`."""
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(cache), **environment}
    done = subprocess.run([sys.executable, *program], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def compiled_in(cache: Path) -> list[str]:
    return sorted(path.name.split(".")[1].rpartition("_")[0] for path in cache.rglob("*.nbc"))


EXAMPLE = f"""
import sys
sys.path.insert(0, {str(TRIAL.parent)!r})
from first_step_trial import example
from sparsegroup.kernels.cpu import jit
jit.NOTICE_AFTER = 0.0
example()
print(*(name for name in {LATER} if name in sys.modules))
"""


def test_one_process_compiles_the_one_kernel_of_the_readme_example_and_the_next_process_none(tmp_path: Path) -> None:
    assert "compiling the step of adam" in printed(tmp_path, "-c", EXAMPLE)[1]
    assert len(compiled_in(tmp_path)) == 1
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")}
    assert printed(tmp_path, "-c", EXAMPLE) == ("\n", "")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")} == kept


AHEAD = """
import os, time
from pathlib import Path
import torch
from sparsegroup import GroupSGD
from sparsegroup.kernels.cpu import jit, threads
from sparsegroup.kernels.cpu.ahead import compile_ahead
from sparsegroup.rules import SGD
threads.set_num_threads(4)
compile_ahead(SGD)
cache = Path(os.environ["NUMBA_CACHE_DIR"])
while len([*cache.rglob("*.step_*.lock")]) < 1:
    time.sleep(0.01)
save = jit.KernelCache.save_overload

def save_and_print(cache, *arguments):
    print(cache.path.name.split(".")[1].split("_")[0])
    save(cache, *arguments)

jit.KernelCache.save_overload = save_and_print
weight = torch.nn.Parameter(torch.ones(3, 2))
weight.grad = torch.ones(3, 2)
GroupSGD([weight], lr=0.5, l1=0.1).step()
"""


def test_a_kernel_that_another_process_compiles_ahead_is_waited_for(tmp_path: Path) -> None:
    assert printed(tmp_path, "-c", AHEAD)[0] == ""
    assert "step" in compiled_in(tmp_path)  # and no process of it holds the output open, or writes there


STEP = """
import torch
from sparsegroup import GroupAdam
weight = torch.nn.Parameter(torch.ones(3, 2))
weight.grad = torch.ones(3, 2)
GroupAdam([weight], lr=0.5).step()
print(weight.sum().item())
"""


def limited(size: int) -> str:
    """Files take at most `size` bytes."""
    return f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"


@pytest.mark.slow
def test_kernels_are_compiled_where_they_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for cache, before in (("file", ""), ("file/below", ""), ("full", limited(600))):
        # Nor next to the package, nor in the home folder.
        locators = "" if cache == "full" else "UserProvidedCacheLocator"
        out, err = printed(tmp_path / cache, "-c", before + STEP, NUMBA_CACHE_LOCATOR_CLASSES=locators)
        assert out == "3.0\n"
        assert err.count("cannot be kept on disk") == 1, err


TWICE = """
import sys, time
from sparsegroup.kernels.cpu import jit

jit.NOTICE_AFTER = 0.0
load = jit.KernelCache._load_overload

def load_slowly(self, sig, target_context):
    time.sleep(0.2)
    return load(self, sig, target_context)

jit.KernelCache._load_overload = load_slowly

def twice(value):
    return 2 * value

twice.__module__ = "sparsegroup.kernels.cpu.jit"
kernel = jit.kernel(twice, "twice")
{limit}
print(kernel(2), kernel(3), kernel(2.5))
"""


@pytest.mark.slow
def test_a_kernel_that_could_not_be_kept_is_used_and_a_slow_load_is_not_called_compiling(tmp_path: Path) -> None:
    def twice(size: int = 1 << 20) -> str:
        """From a file: Numba keeps nothing of a source that it cannot find."""
        (tmp_path / "script.py").write_text(TWICE.format(limit=limited(size)))
        out, err = printed(tmp_path, tmp_path / "script.py")
        assert out == "4 6 5.0\n"
        return err

    assert twice(10).count("cannot be kept on disk") == 1
    assert "compiling twice for this machine, once" in twice()
    assert twice() == ""
    for index in tmp_path.rglob("*.nbi"):
        index.write_bytes(b"")  # as after a loss of power
    twice()


def _adding(constant: int, helper: FunctionType) -> FunctionType:
    def kernel(value: int) -> int:
        return ADDED(value) + CONSTANT + UNRELATED  # type: ignore[name-defined]  # noqa: F821

    names = {"CONSTANT": constant, "ADDED": jit.jitted(helper), "UNRELATED": 0, "something_else": object()}
    return FunctionType(kernel.__code__, names, "kernel")


_ONE, _TWO = 1, 2


def _helper(value: int) -> int:
    return value + _ONE


def _other_helper(value: int) -> int:
    return value + _TWO


def test_a_digest_is_another_one_for_what_a_kernel_calls_and_for_its_constants_only() -> None:
    digest = kernel_digest(_adding(1, _helper))
    assert kernel_digest(_adding(1, _helper)) == digest  # whatever `something_else` is, which it does not use
    assert kernel_digest(_adding(2, _helper)) != digest
    assert kernel_digest(_adding(1, _other_helper)) != digest
    moved = FunctionType(_helper.__code__, _helper.__globals__, _helper.__name__)
    assert kernel_digest(_adding(1, moved)) == digest
    moved.__module__ = "another_module"
    assert kernel_digest(_adding(1, moved)) != digest


def test_what_a_kernel_inlines_becomes_machine_code_only_as_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    made, finish = [], JITCodeLibrary._finalize_specific

    def note_and_finish(library: JITCodeLibrary) -> None:
        made.append(library.name)
        finish(library)

    monkeypatch.setattr(JITCodeLibrary, "_finalize_specific", note_and_finish)
    assert njit(no_cfunc_wrapper=True)(_adding(1, _helper))(2) == 4
    assert any("kernel" in name for name in made)
    assert not any("_helper" in name for name in made)


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
