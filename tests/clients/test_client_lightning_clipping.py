"""Lightning clips the gradients of tables."""

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from client_cases import TableModel, clicks
from sparsegroup import GroupMomentum

lightning = pytest.importorskip("lightning")

pytestmark = pytest.mark.filterwarnings("ignore")
BATCH = 32
CLIP = 0.5


class Clicks(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = TableModel()

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        return self.model.loss(*batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return GroupMomentum(self.parameters(), lr=0.1)


def fitted(module: Clicks, **options: object) -> TableModel:
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=CLIP,
        **options,
    )
    trainer.fit(module, DataLoader(TensorDataset(*clicks()), BATCH))
    return module.model


def by_hand(norm_type: float | None) -> TableModel:
    """The same steps with losses that are scaled so that their gradients have the norm; with None, values clamped."""
    model = TableModel()
    optimizer = GroupMomentum(model.parameters(), lr=0.1)
    keys, labels = clicks()
    for first in range(0, len(keys), BATCH):
        optimizer.zero_grad()
        model.loss(keys[first : first + BATCH], labels[first : first + BATCH]).backward()
        gradient = model.table.weight.grad.coalesce()
        parts = [gradient.values(), model.out.weight.grad, model.out.bias.grad]
        if norm_type is None:
            parts = [part.clamp(-CLIP, CLIP) for part in parts]
        else:
            norm = torch.linalg.vector_norm(torch.cat([part.flatten() for part in parts]), norm_type)
            parts = [part * (CLIP / (norm + 1e-6)).clamp(max=1) for part in parts]
        model.table.weight.grad = torch.sparse_coo_tensor(gradient.indices(), parts[0], gradient.shape)
        model.out.weight.grad, model.out.bias.grad = parts[1:]
        optimizer.step()
    return model


def assert_same(one: TableModel, other: TableModel) -> None:
    keys = torch.arange(40)
    torch.testing.assert_close(one.table.lookup(keys), other.table.lookup(keys))
    torch.testing.assert_close(one.out.state_dict(), other.out.state_dict())


@pytest.mark.parametrize(("algorithm", "norm_type"), [("norm", 2.0), ("value", None)])
def test_gradient_clip_val_clips_tables(algorithm, norm_type):
    assert_same(fitted(Clicks(), gradient_clip_algorithm=algorithm), by_hand(norm_type))
