"""Lightning: the example, a compiled model, a checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from client_example import run_example
from sparsegroup import GroupAdam, HashEmbedding, param_groups

lightning = pytest.importorskip("lightning")

pytestmark = pytest.mark.filterwarnings("ignore")


class Clicks(lightning.LightningModule):
    def __init__(self, compiles: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(HashEmbedding(4), nn.Flatten(), nn.Linear(12, 1), nn.Flatten(0))
        if compiles:
            self.network.compile(backend="aot_eager", fullgraph=True)

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        return functional.binary_cross_entropy_with_logits(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return GroupAdam(param_groups(self, l21=1e-3))

    @property
    def table(self) -> HashEmbedding:
        table = self.network[0]
        assert isinstance(table, HashEmbedding)
        return table


def batches() -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(1)
    keys = torch.randint(0, 100, (200, 3), generator=draw)
    return DataLoader(TensorDataset(keys, (keys[:, 0] % 2).float()), 16)


def trainer(folder: Path, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(accelerator="cpu", default_root_dir=folder, **quiet, **options)


def test_the_example() -> None:
    auc, rate, _ = run_example("lightning_module")
    assert auc > 0.74
    assert rate <= 0.101


def test_a_compiled_model_trains_the_rows_of_an_eager_one(tmp_path: Path) -> None:
    models = Clicks(), Clicks(compiles=True)
    for model in models:
        trainer(tmp_path, max_epochs=1, enable_checkpointing=False).fit(model, batches())
    keys = torch.arange(100)
    eager, compiled = (model.table.lookup(keys) for model in models)
    assert not torch.equal(eager, models[0].table.initial(keys))
    torch.testing.assert_close(compiled, eager)


def test_a_checkpoint_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    whole, first, second = Clicks(), Clicks(), Clicks()
    trainer(tmp_path, max_epochs=2).fit(whole, batches())
    half = trainer(tmp_path, max_epochs=1)
    half.fit(first, batches())
    half.save_checkpoint(tmp_path / "half.ckpt")
    trainer(tmp_path, max_epochs=2).fit(second, batches(), ckpt_path=tmp_path / "half.ckpt", weights_only=False)
    keys = torch.arange(100)
    assert torch.equal(second.table.lookup(keys), whole.table.lookup(keys))
    assert (second.table.num_live, second.table.num_seen) == (whole.table.num_live, whole.table.num_seen)
