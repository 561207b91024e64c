"""What is imported when, and what an installation without the extras says. In processes of their own."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from sparsegroup.errors import MODULES, Extra

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
MODULE_OF = {
    "confluent-kafka": "confluent_kafka",
    "mlflow-skinny": "mlflow",
    "polars-hash": "polars_hash",
    "prometheus-client": "prometheus_client",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}
ROOMS: dict[Extra, tuple[str, ...]] = {
    "checkpoint": ("artifact", "checkpoint"),
    "cli": ("data", "training", "reporting", "serving", "estimator", "cli"),
    "tune": ("tuning",),
    "serve": ("server",),
}
SLOW = {
    *("torch", "tensorboard", "mlflow", "numpy", "numba", "polars", "pyarrow", "sklearn", "matplotlib", "jinja2"),
    *("pydantic", "yaml"),
}
HELP = """
import sys
from sparsegroup.__main__ import main
def show_help(*command):
    sys.argv = ["sparsegroup", *command, "--help"]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code
"""


def alone(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def imported(code: str) -> set[str]:
    """The packages that code imports."""
    done = alone(f"{code}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split("\n")[-2].split())


def without(extra: Extra, code: str) -> subprocess.CompletedProcess[str]:
    """Run code where the packages of an extra are not installed."""
    return alone(f"import sys\nsys.modules.update(dict.fromkeys({MODULES[extra]}))\n{code}")


def test_the_package_alone_imports_nothing() -> None:
    """Trainer, Classifier and export are imported from the top when they are used."""
    done = imported("import sparsegroup\nassert {'Trainer', 'Classifier', 'export'} <= {*dir(sparsegroup)}")
    assert SLOW.isdisjoint(done)


def test_an_optimizer_imports_no_compiler() -> None:
    done = imported("from sparsegroup import GroupAdam")
    assert "torch" in done
    assert done.isdisjoint(("numba", "llvmlite", "triton"))


def test_every_public_name_is_there_and_needs_no_extra() -> None:
    done = imported("import sparsegroup\nfor name in sparsegroup.__all__: assert getattr(sparsegroup, name)")
    assert "numba" in done
    assert "triton" not in done
    assert not {*MODULES["cli"], *MODULES["onnx"]} & done - {"yaml"}  # Numba looks for that one
    from sparsegroup import Classifier, Trainer, estimator, export, serving, training

    assert (Classifier, Trainer, export) == (estimator.Classifier, training.Trainer, serving.export)


def test_the_list_of_commands_imports_no_command_and_help_what_declares_settings() -> None:
    code = f"""{HELP}
show_help()
room = "sparsegroup.cli."
assert {{name for name in sys.modules if name.startswith(room)}} == {{room + "app", room + "output"}}
assert {SLOW}.isdisjoint(sys.modules), "of what takes time"
from sparsegroup.cli.app import COMMANDS
for name in COMMANDS: show_help(name)
"""
    assert SLOW & imported(code) <= {"pydantic", "yaml"}


@pytest.mark.parametrize("extra", ROOMS)
def test_a_room_without_its_extra_says_what_to_install(extra: Extra) -> None:
    names = ("Trainer", "Classifier", "export") if extra == "cli" else ()
    code = f"""
from importlib import import_module
import sparsegroup
for room in {ROOMS[extra]}:
    try:
        import_module(f"sparsegroup.{{room}}")
    except ImportError as error:
        print(error)
for name in {names}:
    assert name not in dir(sparsegroup)
    try:
        getattr(sparsegroup, name)
    except ImportError as error:
        print(error)
"""
    lines = without(extra, code).stdout.splitlines()
    assert len(lines) == len(ROOMS[extra]) + len(names)
    for room, line in zip(ROOMS[extra], lines, strict=False):
        assert line.startswith(f"sparsegroup.{room} needs ")
    assert all(line.endswith(f", not installed here: pip install 'sparsegroup[{extra}]'") for line in lines)


def test_the_adapter_of_torchrec_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrec", None)
    monkeypatch.delitem(sys.modules, "sparsegroup.integrations.torchrec", raising=False)
    with pytest.raises(ImportError, match="needs torchrec and fbgemm_gpu, which cannot be imported here"):
        import_module("sparsegroup.integrations.torchrec")


def test_without_the_extra_of_the_command_optimizers_tables_and_models_work() -> None:
    """And the command says what to install, in one line."""
    code = """
import torch
from sparsegroup import GroupAdam, HashEmbedding
from sparsegroup.models import MLP
table, network = HashEmbedding(4), MLP(2, 4)
optimizer = GroupAdam([{"params": table.parameters(), "l21": 1e-3}, {"params": network.parameters()}], lr=0.1)
network(table(torch.tensor([[1, 2], [3, 4]]))).sum().backward()
optimizer.step()
print("trained")
from sparsegroup.__main__ import main
main()
"""
    done = without("cli", code)
    assert (done.returncode, done.stdout) == (1, "trained\n"), done.stderr
    (error,) = (line for line in done.stderr.splitlines() if not line.startswith("compiling "))
    assert error.startswith("error: sparsegroup.cli needs ")
    assert error.endswith("pip install 'sparsegroup[cli]'")


def test_every_package_of_an_extra_is_asked_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def modules(extra: str) -> set[str]:
        names = {requirement.partition(">=")[0] for requirement in extras[extra]}
        own = {MODULE_OF.get(name, name) for name in names if not name.startswith("sparsegroup[")}
        return own | (modules("checkpoint") if "sparsegroup[checkpoint]" in names else set())

    for extra, expected in MODULES.items():
        assert {*expected} == modules(extra)


def test_the_package_can_be_called_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "sparsegroup", "--version"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sparsegroup ")
