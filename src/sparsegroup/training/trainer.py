"""The streaming trainer: each batch is predicted, then trained on, while the next one is read and looked up."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsegroup.data.batches import Batch
from sparsegroup.data.log import Log
from sparsegroup.objectives import LOGISTIC, Objective
from sparsegroup.optim import GroupAdaHessian, GroupOptimizer, SizeTarget
from sparsegroup.reporting.run_record import AnyMetrics, HistoryPoint, Summary
from sparsegroup.settings.declared import Settings
from sparsegroup.settings.names import AfterFirstEpoch
from sparsegroup.table import EveryKey, FieldTables, HashEmbedding
from sparsegroup.table.field_tables import tables_in
from sparsegroup.training.model import (
    LookupModel,
    check_stepped,
    check_table,
    inputs_of,
    keys_to_look_up,
    logit_bias_of,
    looked_up,
)
from sparsegroup.training.network_step import NetworkStep, check_loss, failed_step
from sparsegroup.training.plan import EpochPlan, Epochs, check_epochs, of_epoch
from sparsegroup.training.predictions import PredictionWindow, Sample, as_batch, predict, with_checked_labels
from sparsegroup.training.ranks import GlobalBatch, RankGroup, SharedStatistics, StopRequest
from sparsegroup.training.state import (
    BestState,
    EpochProgress,
    History,
    TemporaryBest,
    TrainerState,
    table_figures,
)


@dataclass(frozen=True)
class TrainedBatch:
    """A batch that a model has been trained on.

    Attributes:
        batch: This rank's rows, n of them; none where it has none left.
        logits: The model's `[n]`, or `[n, outputs]`, from before the step.
        samples: Rows of all ranks.
    """

    batch: Batch
    logits: Tensor
    samples: int
    _loss: Tensor

    @cached_property
    def loss(self) -> float:
        """The loss of all ranks before the step; to read it is to wait for a GPU."""
        return float(self._loss)


class Callback:
    """Is notified while a model is trained. The methods of this class do nothing: override those you need.

    Each may call `trainer.stop`, `evaluate` and `predict`: training continues as if it had not. `on_run_begin`
    and `on_run_end` belong to a run in a folder (`sparsegroup train`).

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupAdam, HashEmbedding
        >>> from sparsegroup.models import MLP
        >>> from sparsegroup.training import Callback, Trainer
        >>> class Show(Callback):
        ...     def on_point(self, trainer, point):
        ...         print(point.samples)
        >>> table, network = HashEmbedding(4), MLP(fields=3, dim=4)
        >>> optimizer = GroupAdam([*table.parameters(), *network.parameters()])
        >>> stream = [(torch.randint(100, (32, 3)), torch.randint(2, (32,))) for _ in range(10)]
        >>> trainer = Trainer(table, network, optimizer, window=160, callbacks=[Show()])
        >>> points = trainer.fit(stream)
        160
        320
    """

    def on_begin(self, trainer: "Trainer") -> None:
        """`fit` begins. `trainer.history` has the points so far, also of a resumed run."""

    def on_batch(self, trainer: "Trainer", trained: TrainedBatch) -> None:
        """A batch has been trained on."""

    def on_window(self, trainer: "Trainer", window: PredictionWindow) -> Mapping[str, Any] | None:
        """All ranks have trained on the samples of a point; may return more of its fields."""

    def on_point(self, trainer: "Trainer", point: HistoryPoint) -> None:
        """A point has joined the history; an epoch's last point after the validation."""

    def on_validation(self, trainer: "Trainer", metrics: AnyMetrics) -> None:
        """An epoch has ended, and the model has these metrics on the validation rows; see `trainer.progress`."""

    def between_batches(self, trainer: "Trainer") -> None:
        """A checkpoint can be written: after each batch, and again between two epochs."""

    def on_end(self, trainer: "Trainer") -> None:
        """`fit` is over, or has failed."""

    def on_run_begin(self, folder: Path, config: Settings) -> None:
        """A run begins in `folder`, or is resumed there."""

    def on_run_end(self, folder: Path, summary: Summary | None) -> None:
        """A run is complete, with all its files; `summary` is None where an exception has ended it before that."""

    def state_dict(self) -> Any:
        """What checkpoints keep of it: numbers, texts, tensors, lists and dicts; None is nothing."""

    def load_state_dict(self, trainer: "Trainer", states: Sequence[Any]) -> None:
        """Continue from the states of all ranks, in their order. ValueError, and no change, if they are no such."""


class Trainer:
    """Trains a network over a table's embeddings, in a pass over a stream of batches or in several.

    The loss is the objective's mean over a batch, each sample's times its weight: by default the binary cross entropy.
    If the table is on several ranks, each trains on its part of the batch; see "On several ranks".

    Args:
        table: Looks up the keys' vectors.
        network: From embeddings `[n, fields, dim]` and numbers `[n, numbers]` (None if there are none) to logits `[n]`,
            or `[n, outputs]` where the objective has several: a network of `sparsegroup.models`, or another. It is on
            the table's device; batches are sent there.
        optimizer: Steps the parameters of both, except frozen ones; or several, which are stepped one after the other.
        objective: The loss, and what the network's outputs mean.
        scheduler: Sets the learning rate; stepped after each batch.
        target: Sets λ21, so that a chosen size remains; stepped after each batch, before the scheduler.
        window: Samples between two points of the history, at least a batch.
        compile: Compile the network by torch.compile, which takes a C++ compiler and at first some ten seconds; where
            that cannot be done, it warns and trains without.
        matmul_precision: With "medium", a CPU with AMX multiplies the matrices of MLP, DCN and DCNv2, in training,
            rounded to bfloat16; otherwise float32. None for `torch.get_float32_matmul_precision()`.
        callbacks: Are notified of what happens, in this order, see `Callback`; only one of a class that has a state.

    Raises:
        TypeError: `table` holds no table, or `optimizer` is something else.
        ValueError: A window < 1, or an unknown precision; no optimizer has a table's rows (it warns if they lack other
            parameters); tables on different ranks; `GroupAdaHessian` on several ranks.

    Attributes:
        samples: Trained on so far, by all ranks.
        taken: Samples that this rank has trained on in the current epoch.
        trained: Samples that this rank has trained on, before and after a resume on the same number of ranks.
        progress: How far `fit` has come in its epochs.
        validated: The predictions of the last validation; None before there was one.
        ranks: The ranks that train together.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupAdam, HashEmbedding
        >>> from sparsegroup.models import MLP
        >>> from sparsegroup.training import Trainer
        >>> table, network = HashEmbedding(4), MLP(fields=3, dim=4)
        >>> optimizer = GroupAdam([{"params": table.parameters(), "l21": 1e-3}, {"params": network.parameters()}])
        >>> stream = [(torch.randint(100, (32, 3)), torch.randint(2, (32,))) for _ in range(10)]  # keys, labels
        >>> trainer = Trainer(table, network, optimizer)
        >>> trainer.fit(stream)[-1].samples
        320
    """

    def __init__(
        self,
        table: HashEmbedding | FieldTables,
        network: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        objective: Objective = LOGISTIC,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        target: SizeTarget | None = None,
        window: int = 100_000,
        compile: bool = False,
        matmul_precision: Literal["highest", "high", "medium"] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        if window < 1:
            raise ValueError(f"window must be >= 1, got {window}")
        if matmul_precision not in (None, "highest", "high", "medium"):
            raise ValueError(f"matmul_precision must be 'highest', 'high' or 'medium', got {matmul_precision!r}")
        check_table(table, "Trainer(table, network, optimizer)")
        self.table, self.network, self.window = table, network, window
        self.ranks = RankGroup.of(table)
        self.objective = objective
        self._record = History(objective)
        self.optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
        for one in self.optimizers:
            if not isinstance(one, torch.optim.Optimizer):
                raise TypeError(f"optimizer must be a torch.optim.Optimizer, such as GroupAdam, got {optimizer!r}")
        self.scheduler, self.target = scheduler, target
        self.callbacks = list(callbacks)
        self.progress, self._is_frozen = EpochProgress(), False
        self.validated: PredictionWindow | None = None
        self._asked = StopRequest()
        self._stop = self._asked if self.ranks.is_alone else StopRequest()
        self.taken = self.trained = 0
        self.samples = 0
        self._callback_states: dict[str, list[Any]] = {}
        self._second_order = any(isinstance(optimizer, GroupAdaHessian) for optimizer in self.optimizers)
        self._model, self._tables = LookupModel(table, network), list(tables_in(table).values())
        self._model.objective = objective
        self._timed = [table for table in self._tables if table.table.config.unit == "seconds"]
        self._dense = NetworkStep(
            network, self.ranks, objective=objective, compile=compile, matmul_precision=matmul_precision,
            second_order=self._second_order,
        )  # fmt: skip
        if self.optimizers:  # without, it is there to evaluate
            check_stepped({"table": table, "network": network}, self.optimizers)
        if self._second_order and not self.ranks.is_alone:
            raise ValueError("GroupAdaHessian trains on one rank: second derivatives are not added up over several")
        self._parameters = list(self._model.parameters())
        self.ranks.broadcast_parameters(network, self._parameters)
        self._statistics = SharedStatistics(network, self.ranks)

    @property
    def history(self) -> list[HistoryPoint]:
        """The points so far; while `fit` is under way, on the first rank alone."""
        return self._record.points

    def go_on_after(self, history: Sequence[HistoryPoint]) -> None:
        """Let what is trained next follow these points of earlier passes."""
        self.samples = history[-1].samples if history else 0
        self._record.go_on(history, history[-1].seconds if history else 0.0, PredictionWindow(self.objective))

    def fit(
        self,
        stream: Epochs,
        *,
        epochs: int = 1,
        validation: Epochs | None = None,
        patience: int = 0,
        after_first_epoch: AfterFirstEpoch = "train",
        best: BestState | None = None,
    ) -> list[HistoryPoint]:
        """Train on each batch of the stream in order, having predicted it first; `epochs` times.

        Args:
            stream: Batches; on several ranks, this one's part of each. They are best made in a thread of the stream's
                own, as `PreparedLog` does. For several epochs a stream that can be read again, such as a DataLoader, or
                a function of the epoch's number, from 0. After `load_state_dict`, the first one must hold the remaining
                batches of the epoch.
            epochs: The most epochs.
            validation: Batches that are not trained on, in the same form. After each epoch the model is measured
                on them, once a `target` whose ramp is over has been met exactly. In the end the state after the epoch
                of the lowest log loss is restored: table, network, optimizers, scheduler, target. With a target only
                epochs count that ended after its ramp.
            patience: Stop when this many epochs in a row were no better; 0: never.
            after_first_epoch: What becomes of the embeddings in later epochs. "train": they are trained on. "reset":
                each epoch starts from their first values, without u and state; a `target` must be made for the steps of
                one epoch, and restarts. "freeze": only the network is trained.
            best: Where the best state is kept; None: in the system's temporary folder.

        Returns:
            The points of this call, which join `history`.

        Raises:
            ValueError: Numbers out of range or that do not go together, a stream that ends with the first epoch, or a
                label that the objective does not take.
            MissingNumberError: Numbers are missing or infinite, and the model does not take them.
            FloatingPointError: Training has diverged; the batch that shows it has not been trained on.
        """
        check_epochs(stream, epochs, validation, patience, after_first_epoch)
        begin = len(self.history)
        self._asked.withdraw()
        self._stop.withdraw()
        if self.progress.is_over:
            self.progress = EpochProgress()
        keeps_own = best is None and validation is not None and epochs > 1
        if keeps_own and self.progress.best is not None:
            raise ValueError("the state of the best epoch so far is where it was kept: give it as `best`")
        if keeps_own and not self.ranks.is_alone:
            raise ValueError("on several ranks, say where the state of the best epoch is kept: give `best`")
        temporary = TemporaryDirectory(prefix="sparsegroup-best-") if keeps_own else nullcontext()
        with self.notified(), temporary as folder:
            if folder is not None:
                best = TemporaryBest(Path(folder), self._model, self.optimizers, self.scheduler)
            while self._goes_on(epochs, patience) and not self._stop.is_made:
                self._begin_epoch(after_first_epoch)
                with self._record.clock():
                    is_whole = self._pass(of_epoch(stream, self.progress.epoch))
                metrics, is_best = self._end_epoch(validation) if is_whole else (None, False)
                self._report()
                if metrics is not None:
                    for callback in self.callbacks:
                        callback.on_validation(self, metrics)
                if is_whole and self._goes_on(epochs, patience):
                    if is_best and best is not None:
                        best.keep()
                    self._between_batches()
            is_over = not self._goes_on(epochs, patience)
            if is_over and best is not None and self.progress.best not in (None, self.progress.epoch):
                best.restore()
        self.progress.is_over = is_over
        self._record.points = self.ranks.broadcast(self.history, "the history")
        return self.history[begin:]

    def fit_plan(self, plan: EpochPlan, log: Log) -> None:
        """Train on the rows of a log in all epochs of a plan and, if it says so, recalibrate on the last ones."""
        self.fit(**plan.arguments(log))
        if plan.recalibrate:
            self.recalibrate(plan.recalibration(log), plan.arguments(log)["validation"])

    def partial_fit(self, stream: Iterable[Sample]) -> None:
        """Train on the next batches of a stream that may never end, each predicted first.

        Epoch and window continue with the next call, so that it makes no difference how the stream is cut into calls.
        Callbacks are notified of batches and points, and between batches; see `notified` for the rest. On one rank.

        Raises:
            ValueError, MissingNumberError, FloatingPointError: See `fit`.
        """
        with self._record.clock():
            self._pass(stream, is_epoch=False)

    def forget(self, keep: int) -> None:
        """Keep the last points of the history only, of a training that never ends."""
        self._record.forget(keep)

    def stop(self, *, finish: bool = False) -> None:
        """End `fit` after the batch under way: from a callback, another thread, or a signal handler.

        The state is then one between two batches: a checkpoint of it, with `state_dict`, resumes with the samples
        behind `progress.position` and ends with the bits of a training that was never stopped. After the last batch of
        an epoch follows its validation. If nothing is being trained, nothing happens.

        Args:
            finish: The training is over, not interrupted: the epoch ends here and is validated, and the state after the
                best one returns.
        """
        self._asked.make(finish=finish)

    def _goes_on(self, epochs: int, patience: int) -> bool:
        return self.progress.goes_on(epochs, patience) and not self._stop.finishes

    def _begin_epoch(self, after_first_epoch: AfterFirstEpoch) -> None:
        is_later = self.progress.epoch > 0
        self._is_frozen = is_later and after_first_epoch == "freeze"
        if not is_later or after_first_epoch != "reset" or self.progress.position:
            return
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        for table in self._tables:
            if table.weight.requires_grad:  # frozen ones stay
                for optimizer in self.optimizers:
                    optimizer.state.pop(table.weight, None)
                table.table.reset_rows()
        if self.target is not None:
            self.target.restart()

    def _end_epoch(self, validation: Epochs | None) -> tuple[AnyMetrics | None, bool]:
        """Measure the model, and note how good it is; gives that, and whether it is the best so far."""
        target, metrics = self.target, None
        is_met = target is None or target.count >= target.ramp
        if validation is not None:
            if target is not None and is_met and target.count != target.steps:
                target.settle()
            self.validated = self.predictions(of_epoch(validation, self.progress.epoch))
            metrics = self.validated.metrics()
            self._record.note_validation(metrics)
        self.taken = 0
        return metrics, self.progress.end_epoch(metrics, may_be_best=is_met)

    def _pass(self, stream: Iterable[Sample], *, is_epoch: bool = True) -> bool:
        """Train on each batch of the stream once; gives whether that was all, or it has been stopped before.

        A window ends with an epoch; if the stream is a part of one, only once it is full.
        """
        self._begin_training()
        # What is looked up ahead has been counted; a checkpoint in between would count it once more when resumed.
        is_counted = not all(isinstance(table.table.config.admission, EveryKey) for table in self._tables)
        checked = with_checked_labels(map(as_batch, stream), self.objective)
        batches = self.ranks.synchronized_batches(checked, self._asked, self._stop)
        batch = next(batches, None)
        first = None if batch is None else batch.own
        _set_time(self._timed, first)
        keys = None if first is None else keys_to_look_up(self.network, first.keys, first.bags)
        with self._statistics.following(first):
            while batch is not None and not self._stop.is_made:
                assert keys is not None
                following = next(batches, None)
                next_keys = None
                if following is not None:
                    next_keys = keys_to_look_up(self.network, following.own.keys, following.own.bags)
                is_last = following is None and is_epoch
                ends = is_last or self._record.window.samples + batch.samples >= self.window
                # At the end of a window nothing is looked up ahead: the next batch's features are not counted yet.
                ahead = None if ends or is_counted else next_keys
                try:
                    logits, loss = self._step(batch, keys, ahead, following)
                except FloatingPointError as error:
                    raise failed_step(error, self.network, batch.own, self.samples) from error
                self.samples += batch.samples
                self.trained += len(batch.own)
                self.taken += len(batch.own)
                self.progress.position += batch.samples
                self.progress.steps += 1
                self._record.window.add(batch.own, logits, batch.samples)
                trained = TrainedBatch(batch.own, logits, batch.samples, loss)
                for callback in self.callbacks:
                    callback.on_batch(self, trained)
                if ends:
                    self._end_window()
                    if not is_last:
                        self._report()
                self._between_batches()
                if not self._model.training:  # a callback has predicted
                    self._begin_training()
                batch, keys = following, next_keys
            is_whole = batch is None or self._stop.finishes
            if is_whole and is_epoch and self._record.window.samples:
                self._end_window()
        return is_whole

    def _begin_training(self) -> None:
        """Put the model into training mode, all but frozen embeddings."""
        self._model.train()
        if self._is_frozen:
            self.table.eval()

    def _report(self) -> None:
        """Notify callbacks of new points, on the first rank, which measures them."""
        for point in () if self.ranks.rank else self._record.new_points():
            for callback in self.callbacks:
                callback.on_point(self, point)

    def _between_batches(self) -> None:
        for callback in self.callbacks:
            callback.between_batches(self)

    def _end_window(self) -> None:
        """Add the point of the window that ends here, on the first rank; a new window begins."""
        record, target = self._record, self.target
        window = record.window.of_all(self.ranks)
        figures = [callback.on_window(self, window) or {} for callback in self.callbacks]
        sizes, _ = table_figures(self.table)
        facts: dict[str, Any] = {
            "samples": self.samples,
            "epoch": self.progress.epoch + 1,
            **sizes,
            "seconds": self.seconds,
            "samples_per_s": window.samples / max(record.window_seconds, 1e-9),
            "l21": None if target is None else target.l21,
            "scheduled_rate": None if target is None else target.scheduled_rate,
        }
        if not self.ranks.rank:
            unknown = dict.fromkeys(("auc", "log_loss", "normalized_entropy", "calibration"))
            facts |= unknown | vars(window.metrics())
            for more in figures:
                facts |= more
            record.points.append(HistoryPoint(**facts))
        record.next_window()

    @property
    def seconds(self) -> float:
        """That training has taken so far."""
        return self._record.seconds

    def state_dict(self) -> dict[str, Any]:
        """The state between two batches besides model, optimizer and scheduler: numbers and tensors.

        All ranks call it, from `Callback.between_batches` or `best.keep`, or when nothing is trained.
        """
        callbacks = {type(one).__name__: state for one in self.callbacks if (state := one.state_dict()) is not None}
        window = vars(self._record.window.state(self._record.window_seconds))
        own = {
            "taken": self.taken,
            "window": window,
            "compiled_for": self._dense.size,
            "callbacks": callbacks,
            "trained": self.trained,
        }
        return {
            "samples": self.samples,
            "seconds": self.seconds,
            "history": [asdict(point) for point in self.history],
            "progress": asdict(self.progress),
            "ranks": self.ranks.all_gather([own], "the states of the ranks"),
        }

    def load_state_dict(self, state: Mapping[str, Any] | TrainerState) -> None:
        """Continue from the state of a trainer with the same arguments: give `fit` the remaining batches.

        On as many ranks as then, each has trained on `taken` samples of its part of the epoch; on others, the rest of
        the epoch must be divided again. A callback whose class has no state in it starts afresh.

        Raises:
            ValueError: It is no such state; the message begins with the field. Nothing has changed.
        """
        state, ranks = TrainerState.of(state), self.ranks
        for one in state.ranks:
            one.window.check_objective(self.objective)
        self._callback_states = state.callbacks()
        self._restore_callbacks()
        self.progress, self.samples = replace(state.progress), state.samples
        windows = [one.window for one in state.ranks]
        if len(state.ranks) == ranks.count:
            own = state.ranks[ranks.rank]
            self.taken, self._dense.size, parts = own.taken, own.compiled_for, [own.window]
            self.trained = own.trained
        else:  # the first rank takes all of the window, and none has trained on its part of the epoch
            self.taken, self._dense.size, parts = 0, None, [] if ranks.rank else windows
        window = PredictionWindow.joined(parts, sum(len(one.labels) for one in windows), self.objective)
        self._record.go_on(state.history, state.seconds, window, parts[0].seconds if parts else 0.0)

    def _restore_callbacks(self) -> None:
        """Give the callbacks their states of a checkpoint; later callbacks get their state as `fit` starts."""
        for callback in self.callbacks:
            if states := self._callback_states.pop(type(callback).__name__, None):
                try:
                    callback.load_state_dict(self, states)
                except ValueError as error:
                    raise ValueError(f"callbacks.{type(callback).__name__}: {error}") from error

    @contextmanager
    def notified(self) -> Iterator[None]:
        """Notify callbacks that training begins, and in the end that it is over."""
        self._restore_callbacks()
        try:
            for callback in self.callbacks:
                callback.on_begin(self)
            yield
        finally:
            for callback in self.callbacks:
                callback.on_end(self)

    def _step(
        self, step: GlobalBatch, keys: Tensor, next_keys: Tensor | None, following: GlobalBatch | None
    ) -> tuple[Tensor, Tensor]:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        own = step.own
        with torch.set_grad_enabled(not self._is_frozen):
            vectors, bags = looked_up(self.table, self.network, keys, own.keys, own.bags)
        if self._is_frozen:  # their gradients are unused, but the compiled network remains the same
            vectors.requires_grad_()
        target = None if self._is_frozen else self.target
        _set_time(self._timed, None if following is None else following.own)  # before its rows are looked up ahead
        if next_keys is not None and not (target is not None and target.is_due):
            self.table.prefetch(next_keys)
        inputs = inputs_of(self.network, vectors, bags, own.keys, own.numbers)
        logits, loss = self._dense.backward(*inputs, step)
        loss = self.ranks.all_reduce_gradients(self._parameters, loss)
        if not self.ranks.is_alone:  # where one rank's loss is not finite, the sum is so on all
            check_loss(loss)
        self._statistics.merge()
        for optimizer in self.optimizers:
            optimizer.step()
        if target is not None:
            target.step()
        if self.scheduler is not None:
            self.scheduler.step()
        return logits, loss.detach()

    def evaluate(self, stream: Iterable[Sample], *, sweep: bool = False) -> AnyMetrics:
        """Metrics over all batches of a stream; nothing is trained. The model remains in evaluation mode.

        `sweep` sweeps the optimizers first (`GroupOptimizer.sweep`), so that the model is as sparse as λ21 has it now,
        including rows that no batch has touched for long.
        """
        for optimizer in self.optimizers if sweep else ():
            if isinstance(optimizer, GroupOptimizer):
                optimizer.sweep()
        return self.predictions(stream).metrics()

    @torch.no_grad()
    def recalibrate(self, stream: Iterable[Sample], validation: Epochs | None = None) -> Any:
        """Shift the network's `logit_bias` so that the loss on a stream is lowest: probabilities add up to positives.

        Args:
            stream: Batches, as for `fit`.
            validation: The validation rows of `fit`, to measure the shifted model again: `progress.validation`.

        Returns:
            The shift of the logits, see `Objective.shift`; 0 where the network has no such bias.
        """
        if (bias := logit_bias_of(self.network)) is None:
            return 0.0
        window = self.predictions(stream)
        shift = window.shift()
        bias.add_(torch.as_tensor(shift, dtype=bias.dtype, device=bias.device))
        if validation is not None and self.progress.validation is not None:
            self.progress.validation = self.evaluate(of_epoch(validation, self.progress.epoch))
        return shift

    def predictions(self, stream: Iterable[Sample]) -> PredictionWindow:
        """The predictions that `evaluate` measures; of several ranks' parts of the stream, the first rank's first."""
        return predict(self._model, with_checked_labels(map(as_batch, stream), self.objective), self.ranks)

    def predict(self, stream: Iterable[Sample]) -> npt.NDArray[np.float64]:
        """Predictions `[samples]` over all batches of a stream. The model is left in evaluation mode."""
        return predict(self._model, stream, self.ranks).probabilities()


def _set_time(tables: Sequence[HashEmbedding], batch: Batch | None) -> None:
    """Set the time of tables whose policies count in seconds to that of the row in the middle of `batch`."""
    if tables and batch is not None and len(batch):
        now = int(batch.times.median())
        for table in tables:
            table.set_time(now)
