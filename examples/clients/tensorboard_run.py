"""Training on a made-up log, followed in TensorBoard.

python examples/clients/tensorboard_run.py runs/mine && tensorboard --logdir runs
"""

import sys

from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.training import Config, TensorBoardCallback, Trainer


def main(folder: str) -> Trainer:
    log = synthetic_log(SyntheticConfig(rows=8_000), seed=0)
    model, optimizer = Config.of(model="dcn", dim=4, optimizer="adagrad", lr=0.05, l21=1e-3).build(log)
    callback = TensorBoardCallback(folder)
    trainer = Trainer(model.embedding, model.network, optimizer, window=1_024, callbacks=[callback])
    trainer.fit(log.batches(0, log.train_rows, 256))
    print(trainer.evaluate(log.batches(log.train_rows, len(log), 4096)))
    return trainer


if __name__ == "__main__":
    main(sys.argv[1])
