from collections.abc import Callable, Iterator
from functools import cache

import pytest

import by_hand
from experiment_cases import dataset_of
from sparsegroup.data import MemoryLog
from sparsegroup_paper import published as published_module
from sparsegroup_paper.command_line import EXPERIMENTS
from sparsegroup_paper.published import published


@pytest.fixture(scope="module", autouse=True)
def few_points() -> Iterator[None]:
    """Fewer points than the paper has, so that each experiment takes seconds."""
    content = published_module.read_published()
    content["setup"] |= {
        "learning_rate_grid": list(by_hand.LEARNING_RATES),
        "fine_tune_shares": list(by_hand.SHARES),
    }
    for name in ("sparsity", "fine_tune"):
        content[name]["dcn"] = content[name]["dcn"][2:]
    content["embedding_dim"] = content["embedding_dim"][:3]
    content["norm_grids"] = by_hand.NORM_GRIDS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published_module, "read_published", lambda: content)
        for name, value in {
            "choices.HIGHEST_RATE": by_hand.HIGHEST,
            "choices.LOWEST_RATE": by_hand.LOWEST,
            "frontier.LOWEST_RATE": by_hand.LOWEST,
            "choices.FINER": by_hand.FINER,
            "frontier.L2S": by_hand.L2S,
            "lab.REPLICATES": by_hand.REPLICATES,
            "frontier.SPARSITIES": by_hand.SPARSITIES,
            "frontier.RATES": by_hand.RATES,
            "tables.RATES": by_hand.RATES,
        }.items():
            patch.setattr(f"sparsegroup_paper.{name}", value)
        published.cache_clear()
        yield
    published.cache_clear()


@pytest.fixture(scope="module")
def ran(log: MemoryLog, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], by_hand.Ran]:
    """An experiment's section, and what it asked of the lab; each is run once."""
    folder = tmp_path_factory.mktemp("lab")
    lab = by_hand.RecordingLab(dataset_of(log, by_hand.BASE), folder, runs=2, workers=1)

    @cache
    def run_once(name: str) -> by_hand.Ran:
        lab.calls = []
        section = EXPERIMENTS[name](lab)
        assert section.name == name
        return section, lab.calls

    return run_once
