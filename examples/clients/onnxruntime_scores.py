"""A model trained on a made-up log, exported, and scored by onnxruntime, then with its layers and vectors in int8.

python examples/clients/onnxruntime_scores.py served
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import quantize_dynamic

from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.serving import export
from sparsegroup.training import ClickModel, Config, Trainer


class Probability(torch.nn.Module):
    def __init__(self, model: ClickModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(keys)
        return logits.sigmoid()


def scores(path: Path, keys: np.ndarray) -> np.ndarray:
    """What a server does: it needs onnxruntime and numpy alone."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (probabilities,) = session.run(["probability"], {"keys": keys})
    return np.asarray(probabilities)


def main(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    log = synthetic_log(SyntheticConfig(rows=12_000), seed=0)
    model, optimizer = Config.of(model="mlp", dim=8, optimizer="adagrad", lr=0.05, l21=1e-4).build(log)
    trainer = Trainer(model.embedding, model.network, optimizer)
    trainer.fit(log.batches(0, log.train_rows, 256))
    test = next(log.batches(log.train_rows, len(log), 4096))
    export(Probability(model), folder, (test.keys,), formats=["onnx"], outputs=["probability"])
    quantize_dynamic(folder / "model.onnx", folder / "small.onnx")
    exact, small = (scores(folder / name, test.keys.numpy()) for name in ("model.onnx", "small.onnx"))
    print(f"{len(exact)} rows, int8 is off by {np.abs(small - exact).max():.4f} at most")
    return trainer.predict([test]), exact, small


if __name__ == "__main__":
    main(Path(sys.argv[1]))
