"""The paper's own numbers, from `published.yaml`: what the experiments take of Tables 2 to 9 and of section 4."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

BASES = ("adam", "adagrad")
"""The optimizers of whose group versions the paper has experiments."""


@cache
def published() -> dict[str, Any]:
    """What the paper reports, read once.

    Example:
        >>> published()["learning_rates"]["dcn"]["adam"], published()["lambdas"]["dcn"]["adam"]["l21"]
        (0.001, 0.0005)
    """
    content: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
    return content
