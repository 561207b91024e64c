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
WITHOUT_COMMAND = """
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


def alone(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def imported(*codes: str) -> list[set[str]]:
    """The packages that are imported after each of some codes, in one process."""
    listing = "import sys\nprint(*{name.split('.')[0] for name in sys.modules})"
    done = alone("\n".join(f"{code}\n{listing}" for code in codes))
    assert done.returncode == 0, done.stderr
    return [set(line.split()) for line in done.stdout.splitlines()[-len(codes) :]]


def test_the_package_imports_what_is_used_and_none_of_its_public_names_needs_an_extra() -> None:
    """Trainer, Classifier and export are imported from the top when they are used."""
    package, optimizer, every_name = imported(
        "import sparsegroup\nassert {'Trainer', 'Classifier', 'export'} <= {*dir(sparsegroup)}",
        "from sparsegroup import GroupAdam",
        "for name in sparsegroup.__all__: assert getattr(sparsegroup, name)",
    )
    assert SLOW.isdisjoint(package)
    assert "torch" in optimizer
    assert optimizer.isdisjoint(("numba", "llvmlite", "triton"))
    assert "numba" in every_name
    assert "triton" not in every_name
    assert not {*MODULES["cli"], *MODULES["onnx"]} & every_name - {"yaml"}  # Numba looks for that one
    from sparsegroup import Classifier, Trainer, estimator, export, serving, training

    assert (Classifier, Trainer, export) == (estimator.Classifier, training.Trainer, serving.export)


def test_the_list_of_commands_imports_no_command_and_help_what_declares_settings() -> None:
    code = f"""
import sys
from sparsegroup.__main__ import main
def show_help(*command):
    sys.argv = ["sparsegroup", *command, "--help"]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code
show_help()
room = "sparsegroup.cli."
assert {{name for name in sys.modules if name.startswith(room)}} == {{room + "app", room + "output"}}
assert {SLOW}.isdisjoint(sys.modules), "of what takes time"
from sparsegroup.cli.app import COMMANDS
for name in COMMANDS: show_help(name)
"""
    assert SLOW & imported(code)[0] <= {"pydantic", "yaml"}


@pytest.mark.parametrize("extra", ROOMS)
def test_a_room_without_its_extra_says_what_to_install(extra: Extra) -> None:
    """Without that of the command, optimizers, tables and models work, and the command says so in one line."""
    names = ("Trainer", "Classifier", "export") if extra == "cli" else ()
    code = f"""
import sys
sys.modules.update(dict.fromkeys({MODULES[extra]}))
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
    done = alone(code + WITHOUT_COMMAND if extra == "cli" else code)
    lines = done.stdout.splitlines()
    if extra == "cli":
        assert (done.returncode, lines.pop()) == (1, "trained"), done.stderr
        (error,) = (line for line in done.stderr.splitlines() if not line.startswith("compiling "))
        assert error.startswith("error: sparsegroup.cli needs ")
        assert error.endswith("pip install 'sparsegroup[cli]'")
    assert len(lines) == len(ROOMS[extra]) + len(names)
    for room, line in zip(ROOMS[extra], lines, strict=False):
        assert line.startswith(f"sparsegroup.{room} needs ")
    assert all(line.endswith(f", not installed here: pip install 'sparsegroup[{extra}]'") for line in lines)


def test_the_adapter_of_torchrec_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrec", None)
    monkeypatch.delitem(sys.modules, "sparsegroup.integrations.torchrec", raising=False)
    with pytest.raises(ImportError, match="needs torchrec and fbgemm_gpu, which cannot be imported here"):
        import_module("sparsegroup.integrations.torchrec")


def test_every_package_of_an_extra_is_asked_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def modules(extra: str) -> set[str]:
        names = {requirement.partition(">=")[0] for requirement in extras[extra]}
        own = {MODULE_OF.get(name, name) for name in names if not name.startswith("sparsegroup[")}
        return own | (modules("checkpoint") if "sparsegroup[checkpoint]" in names else set())

    for extra, expected in MODULES.items():
        assert {*expected} == modules(extra)
