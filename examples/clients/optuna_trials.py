"""A study of Optuna's own: trials train models on a made-up log, and those that fall behind are pruned.

python examples/clients/optuna_trials.py
"""

import optuna

from sparsegroup.data import ShuffledLog, SyntheticConfig, synthetic_log
from sparsegroup.training import Config, OptunaPruningCallback, Trainer

TRIALS, EPOCHS = 8, 3
LOG = synthetic_log(SyntheticConfig(rows=8_000), seed=0)
TRAINED = LOG.train_rows * 9 // 10  # the rest are for validation; the log's test rows are not touched


def objective(trial: optuna.Trial) -> float:
    config = Config.of(
        model=trial.suggest_categorical("model", ["mlp", "dcn"]),
        dim=trial.suggest_int("dim", 2, 8, log=True),
        lr=trial.suggest_float("lr", 1e-3, 1.0, log=True),
        l21=trial.suggest_float("l21", 1e-5, 1e-2, log=True),
        optimizer="adagrad",
    )
    model, optimizer = config.build(LOG)
    pruning = OptunaPruningCallback(trial, "validation_log_loss")
    trainer = Trainer(model.embedding, model.network, optimizer, callbacks=[pruning])
    trainer.fit(
        lambda epoch: ShuffledLog(LOG, 2_000, rows=TRAINED, epoch=epoch).batches(0, TRAINED, 256),
        epochs=EPOCHS,
        validation=lambda epoch: LOG.batches(TRAINED, LOG.train_rows, 4096),
    )
    trial.set_user_attr("feature_rate", model.embedding.feature_rate)
    assert trainer.progress.validation is not None
    return trainer.progress.validation.log_loss  # of the best epoch, whose state the model has


def main() -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=3)
    study = optuna.create_study(direction="minimize", sampler=optuna.samplers.TPESampler(seed=0), pruner=pruner)
    study.optimize(objective, n_trials=TRIALS, catch=(FloatingPointError,))  # a trial that diverges has failed
    print(f"log loss {study.best_value:.4f}, feature rate {study.best_trial.user_attrs['feature_rate']:.3f}")
    print(study.best_params)
    return study


if __name__ == "__main__":
    main()
