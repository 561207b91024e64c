"""A trained model, opened from a run, a checkpoint or an export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from sparsegroup.checkpoint import load_checkpoint
from sparsegroup.checkpoint.load import saved_state
from sparsegroup.checkpoint.manifest import MANIFEST as CHECKPOINT
from sparsegroup.data.schema import LogSchema
from sparsegroup.serving.frozen import FrozenTable
from sparsegroup.serving.frozen_model import tables_of
from sparsegroup.serving.manifest import MANIFEST, ExportManifest
from sparsegroup.serving.reading import read_export
from sparsegroup.settings.yaml_settings import SettingsError, checked
from sparsegroup.table import FieldCount
from sparsegroup.table.field_tables import tables_in
from sparsegroup.table.rows.rows import WEIGHT
from sparsegroup.table.table import Table
from sparsegroup.training import ClickModel, Config, RunError
from sparsegroup.training.baseline import Baseline, baseline_of
from sparsegroup.training.run_folder import NAMES, VOCABULARY, RunFolder, find_run
from sparsegroup.training.state import CheckpointMetadata

SCANNED = 1 << 16
"""Rows of one read."""


RowSource = FrozenTable | Table
"""A table, in training or of an export, whose rows can be read."""

Kind = Literal["run", "checkpoint", "export"]


@dataclass(frozen=True)
class TrainedModel:
    """A trained model with its settings and columns.

    Attributes:
        path: Its folder.
        kind: What the folder is.
        config: Settings it was trained with.
        columns: The columns that it expects of its logs.
        model: The model, in evaluation mode: an export's as served, otherwise as trained, with the
            optimizer's state in its tables' rows.
        vocabulary: Parquet file of key, field and value, if one was kept.
        names: The same of the features of the largest vectors; None of an export.
        baseline: The run's logistic regression, if there was one; None of an export.
        samples: Trained on, in all; None if that is not known.
        steps: The step count of the tables' optimizer; None if there is none.
        l21: The tables' λ21 in force, which a target changes; None of an export.
        manifest: The manifest of an export, which knows what training has seen, unlike its tables.
    """

    path: Path
    kind: Kind
    config: Config
    columns: LogSchema
    model: ClickModel
    vocabulary: Path | None
    samples: int | None = None
    steps: int | None = None
    l21: float | None = None
    manifest: ExportManifest | None = None
    names: Path | None = None
    baseline: Baseline | None = None

    @property
    def rows(self) -> dict[str, RowSource]:
        """The rows of each table, to be read, by its name."""
        tables = tables_of(self.model)
        return {name: table if isinstance(table, FrozenTable) else table.table for name, table in tables.items()}

    def check_rows(self, *, state: bool = False) -> None:
        """Raise RunError unless the vectors of all rows are finite, and with `state` the rest of the rows."""
        for name, table in self.rows.items():
            rows = wrong = 0
            for keys, arrays in table.scan_rows([WEIGHT, *(table.state_names if state else ())], SCANNED):
                rows += len(keys)
                finite = np.logical_and.reduce([np.isfinite(array).all(axis=1) for array in arrays])
                wrong += len(keys) - int(finite.sum())
            if wrong:
                raise RunError(
                    f"{self.path}: {wrong:,} of {rows:,} rows of the table {name!r} are not finite: training has "
                    "diverged; take an earlier checkpoint"
                )

    def field_counts(self) -> dict[str, FieldCount]:
        """Field → its rows, and its features that training has seen."""
        found = self.model.embedding.field_counts()
        nothing = FieldCount(0, 0, 0)
        features = self.config.model.features(self.columns)
        counts = {name: found.get(number, nothing) for number, name in enumerate(features)}
        if self.manifest is None:
            return counts
        seen = self.manifest.fields
        return {name: FieldCount(seen[name].seen, rows.rows, rows.live) for name, rows in counts.items()}


def open_trained(path: str | Path, *, sweep: bool = False) -> TrainedModel:
    """The model in the folder `path`.

    Args:
        path: A run, a checkpoint or an export; or a folder of runs named by time, for the latest.
        sweep: Apply the closed form to all rows once more (`GroupOptimizer.sweep`), so that a λ that changed reaches
            rows that no batch has touched since. No effect on an export.

    Raises:
        RunError, CheckpointError: It holds no model, or a damaged one.
    """
    path = Path(path)
    if (path / MANIFEST).is_file():
        export = read_export(path)
        columns, config = export.columns_and_config()
        names = export.vocabularies[0] if len(export.vocabularies) == 1 else None
        return TrainedModel(path, "export", config, columns, export.model(), names, manifest=export.manifest)
    if (path / CHECKPOINT).is_file():
        return _open_checkpoint(path, "checkpoint", path, path.parent.parent / VOCABULARY, sweep)
    run = RunFolder(find_run(path))
    run.finished_config()
    return _open_checkpoint(run.path, "run", run.last_checkpoint(), run.path / VOCABULARY, sweep)


def _open_checkpoint(path: Path, kind: Kind, checkpoint: Path, vocabulary: Path, sweep: bool) -> TrainedModel:
    saved = saved_state(checkpoint)
    extra = CheckpointMetadata.of(saved.extra, checkpoint)
    config, columns = checked(Config, extra.config, str(checkpoint)), extra.columns
    try:
        config.check_shapes(columns, saved.model)
        model, optimizer = config.build_for(columns, device="cpu")
    except SettingsError as error:
        raise RunError(f"{checkpoint}: damaged (state.extra.config.{error})") from error
    load_checkpoint(checkpoint, model, optimizer, rng=False)
    if sweep:
        optimizer.sweep(zero_untrained=True)
    entries = [optimizer.state.get(table.weight) for table in tables_in(model).values()]
    return TrainedModel(
        path,
        kind,
        config,
        columns,
        model.eval(),
        vocabulary if vocabulary.is_file() else None,
        samples=extra.samples,
        steps=max(int(entry["step"]) if entry else 0 for entry in entries),
        l21=float(optimizer.param_groups[0]["l21"]),
        baseline=baseline_of(extra, checkpoint, model.network, config.objective),
        names=names if (names := vocabulary.with_name(NAMES)).is_file() else None,
    )
