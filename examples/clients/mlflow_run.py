"""Training on a made-up log, recorded in MLflow with its settings, its points and its test metrics.

python examples/clients/mlflow_run.py sqlite:///mlflow.db   # or http://localhost:5000
"""

import sys
from dataclasses import asdict

from mlflow import MlflowClient

from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.training import Config, MLflowCallback, Trainer
from sparsegroup.training.callbacks.figures import flat_settings


def main(tracking_uri: str) -> str:
    log = synthetic_log(SyntheticConfig(rows=8_000), seed=0)
    config = Config.of(model="dcn", dim=4, optimizer="adagrad", lr=0.05, l21=1e-3)
    model, optimizer = config.build(log)
    callback = MLflowCallback("clicks", tracking_uri=tracking_uri, run_name="synthetic")
    trainer = Trainer(model.embedding, model.network, optimizer, window=1_024, callbacks=[callback])
    trainer.fit(log.batches(0, log.train_rows, 256))

    # What a run of `sparsegroup train --mlflow` adds by itself.
    assert callback.run_id is not None
    client = MlflowClient(tracking_uri)
    for name, value in flat_settings(config).items():
        client.log_param(callback.run_id, name, value)
    for name, value in asdict(trainer.evaluate(log.batches(log.train_rows, len(log), 4096))).items():
        client.log_metric(callback.run_id, f"test/{name}", value, step=trainer.samples)
    print(f"run {callback.run_id}")
    return callback.run_id


if __name__ == "__main__":
    main(sys.argv[1])
