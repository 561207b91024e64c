from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from by_hand import (
    BASE,
    FINER,
    HIGHEST,
    L2S,
    LEARNING_RATES,
    LOWEST,
    NORM_GRIDS,
    RATES,
    REPLICATES,
    SHARES,
    SPARSITIES,
    Ran,
    RecordingLab,
)
from experiment_cases import dataset_of
from sparsegroup.data import MemoryLog
from sparsegroup_paper import published as published_module
from sparsegroup_paper.catalog import EXPERIMENTS
from sparsegroup_paper.published import published


@pytest.fixture(scope="module", autouse=True)
def few_points() -> Iterator[None]:
    """Fewer points than the paper has, so that each experiment takes seconds."""
    content = published_module.read_published()
    content["setup"] |= {"learning_rate_grid": list(LEARNING_RATES), "fine_tune_shares": list(SHARES)}
    for name in ("sparsity", "fine_tune"):
        content[name]["dcn"] = content[name]["dcn"][2:]
    content["embedding_dim"] = content["embedding_dim"][:3]
    content["norm_grids"] = NORM_GRIDS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published_module, "read_published", lambda: content)
        for name, value in {
            "choices.HIGHEST_RATE": HIGHEST,
            "choices.LOWEST_RATE": LOWEST,
            "frontier.LOWEST_RATE": LOWEST,
            "choices.FINER": FINER,
            "frontier.L2S": L2S,
            "execution.REPLICATES": REPLICATES,
            "frontier.SPARSITIES": SPARSITIES,
            "frontier.RATES": RATES,
            "penalty.RATES": RATES,
        }.items():
            patch.setattr(f"sparsegroup_paper.{name}", value)
        published.cache_clear()
        yield
    published.cache_clear()


@pytest.fixture(scope="session")
def lab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that several modules' experiments share are made once."""
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def ran(log: MemoryLog, lab_folder: Path) -> Callable[[str], Ran]:
    """An experiment's section, and what it asked of the lab; each is run once."""
    lab = RecordingLab(dataset_of(log, BASE), lab_folder, runs=2, workers=1)

    @cache
    def run_once(name: str) -> Ran:
        lab.calls = []
        section = EXPERIMENTS[name](lab)
        assert section.name == name
        return section, lab.calls

    return run_once
