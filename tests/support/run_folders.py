"""What a run's folder holds, for comparisons."""

from pathlib import Path

from sparsegroup.training.run_folder import RunFolder


def state_of(run: Path) -> dict[str, bytes]:
    """The tensors that a run ended with: the network, its optimizer, torch's random numbers, the table's rows."""
    return {path.name: path.read_bytes() for path in RunFolder(run).last_checkpoint().glob("*.safetensors")}
