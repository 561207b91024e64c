"""Lightning's weight averaging, which validates and ends with the average, on a model with a table."""

import pytest
import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from client_cases import TableModel, clicks
from sparsegroup import GroupAdam, keep_zeros, param_groups

lightning = pytest.importorskip("lightning")
callbacks = pytest.importorskip("lightning.pytorch.callbacks")

pytestmark = pytest.mark.filterwarnings("ignore")
BATCH, EPOCHS, DECAY = 16, 2, 0.5
KEYS = torch.arange(40)


def optimizer_of(model: TableModel) -> GroupAdam:
    return GroupAdam(param_groups(model, l21=8.0), lr=0.05)


class Clicks(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.validated = TableModel(), []

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        return self.model.loss(*batch)

    def validation_step(self, batch: list[Tensor], number: int) -> None:
        self.validated.append(self.model.table.lookup(KEYS))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer_of(self.model)


def by_hand() -> tuple[TableModel, AveragedModel, list[Tensor]]:
    """The model, its average, and the average's vectors after each epoch."""
    model, after = TableModel(), []
    optimizer, average = optimizer_of(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    keys, labels = clicks()
    for _ in range(EPOCHS):
        for first in range(0, len(keys), BATCH):
            optimizer.zero_grad()
            model.loss(keys[first : first + BATCH], labels[first : first + BATCH]).backward()
            optimizer.step()
            average.update_parameters(model)
        after.append(average.module.table.lookup(KEYS))
    return model, average, after


@pytest.mark.parametrize(
    "callback",
    [
        lambda: callbacks.EMAWeightAveraging(decay=DECAY),
        lambda: callbacks.WeightAveraging(multi_avg_fn=keep_zeros(get_ema_multi_avg_fn(DECAY))),
    ],
    ids=["EMAWeightAveraging", "keep_zeros"],
)
def test_the_average_is_validated_and_is_what_is_left(callback):
    module = Clicks()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        callbacks=[callback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    rows = DataLoader(TensorDataset(*clicks()), BATCH)
    trainer.fit(module, rows, DataLoader(TensorDataset(KEYS[None]), 1))
    model, average, after = by_hand()
    for got, expected in zip(module.validated, after, strict=True):
        torch.testing.assert_close(got, expected)
    torch.testing.assert_close(module.model.table.lookup(KEYS), average.module.table.lookup(KEYS))
    assert 0 < module.model.table.num_live == model.table.num_live < model.table.num_rows
