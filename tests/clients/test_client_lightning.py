"""Lightning: a compiled model, a checkpoint, clipped gradients, averaged weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from client_cases import KEYS, TableModel, clicks
from sparsegroup import GroupAdam, GroupMomentum, GroupOptimizer, keep_zeros, param_groups

lightning = pytest.importorskip("lightning")
callbacks = pytest.importorskip("lightning.pytorch.callbacks")

pytestmark = pytest.mark.filterwarnings("ignore")
BATCH, EPOCHS, DECAY, CLIP = 16, 2, 0.5, 0.5


def group_adam(model: TableModel) -> GroupOptimizer:
    return GroupAdam(param_groups(model, l21=8.0), lr=0.05)


def momentum(model: TableModel) -> GroupOptimizer:
    return GroupMomentum(model.parameters(), lr=0.1)


class Clicks(lightning.LightningModule):
    def __init__(self, make: Callable[[TableModel], GroupOptimizer] = group_adam) -> None:
        super().__init__()
        self.model, self.validated, self.make = TableModel(), [], make

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        return self.model.loss(*batch)

    def validation_step(self, batch: list[Tensor], number: int) -> None:
        self.validated.append(self.model.rows())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.make(self.model)


def trainer(folder: Path, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    return lightning.Trainer(accelerator="cpu", default_root_dir=folder, **quiet, **options)


def batches() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*clicks()), BATCH)


def test_a_compiled_model_trains_the_rows_of_an_eager_one(tmp_path: Path) -> None:
    eager, compiled = Clicks(), Clicks()
    compiled.model.compile(backend="aot_eager", fullgraph=True)
    for module in (eager, compiled):
        trainer(tmp_path, max_epochs=1, enable_checkpointing=False).fit(module, batches())
    assert not torch.equal(eager.model.rows(), eager.model.table.initial(KEYS))
    torch.testing.assert_close(compiled.model.rows(), eager.model.rows())


def test_a_checkpoint_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    whole, first, second = Clicks(), Clicks(), Clicks()
    trainer(tmp_path, max_epochs=2).fit(whole, batches())
    half = trainer(tmp_path, max_epochs=1)
    half.fit(first, batches())
    half.save_checkpoint(tmp_path / "half.ckpt")
    trainer(tmp_path, max_epochs=2).fit(second, batches(), ckpt_path=tmp_path / "half.ckpt", weights_only=False)
    assert torch.equal(second.model.rows(), whole.model.rows())
    ours, theirs = second.model.table, whole.model.table
    assert (ours.num_live, ours.num_seen) == (theirs.num_live, theirs.num_seen)


@pytest.mark.parametrize(("algorithm", "norm_type"), [("norm", 2.0), ("value", None)])
def test_gradient_clip_val_clips_tables(algorithm: str, norm_type: float | None, tmp_path: Path) -> None:
    """As the same steps by hand, with gradients scaled to the norm or, with None, clamped values."""
    module, model = Clicks(momentum), TableModel()
    options = {"gradient_clip_val": CLIP, "gradient_clip_algorithm": algorithm, "enable_checkpointing": False}
    trainer(tmp_path, max_epochs=1, **options).fit(module, batches())
    optimizer = momentum(model)
    for keys, labels in batches():
        optimizer.zero_grad()
        model.loss(keys, labels).backward()
        factor = 1 if norm_type is None else (CLIP / (model.gradient_norm(norm_type) + 1e-6)).clamp(max=1)
        parts = [part.clamp(-CLIP, CLIP) if norm_type is None else part * factor for part in model.gradients()]
        gradient = model.table.weight.grad.coalesce()
        model.table.weight.grad = torch.sparse_coo_tensor(gradient.indices(), parts[0], gradient.shape)
        model.out.weight.grad, model.out.bias.grad = parts[1:]
        optimizer.step()
    torch.testing.assert_close(module.model.rows(), model.rows())
    torch.testing.assert_close(module.model.out.state_dict(), model.out.state_dict())


@pytest.mark.parametrize(
    "callback",
    [
        lambda: callbacks.WeightAveraging(multi_avg_fn=get_ema_multi_avg_fn(DECAY)),
        lambda: callbacks.WeightAveraging(multi_avg_fn=keep_zeros(get_ema_multi_avg_fn(DECAY))),
    ],
    ids=["lerp", "keep_zeros"],
)
def test_the_average_is_validated_and_is_what_is_left(callback: Callable[[], Any], tmp_path: Path) -> None:
    module, model, after = Clicks(), TableModel(), list[Tensor]()
    options = {"callbacks": [callback()], "enable_checkpointing": False}
    trainer(tmp_path, max_epochs=EPOCHS, **options).fit(module, batches(), DataLoader(TensorDataset(KEYS[None]), 1))
    optimizer, average = group_adam(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    for _ in range(EPOCHS):
        for keys, labels in batches():
            optimizer.zero_grad()
            model.loss(keys, labels).backward()
            optimizer.step()
            average.update_parameters(model)
        after.append(average.module.rows())
    torch.testing.assert_close(module.validated, after)
    torch.testing.assert_close(module.model.rows(), after[-1])
    assert 0 < module.model.table.num_live == model.table.num_live < model.table.num_rows
