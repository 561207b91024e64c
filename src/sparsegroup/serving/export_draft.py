"""What is to be exported of a trained model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sparsegroup.artifact.manifest import FileFacts
from sparsegroup.data.keys import fields_of
from sparsegroup.serving.embeddings import Embeddings, live_rows
from sparsegroup.serving.export_folder import file_of
from sparsegroup.serving.export_manifest import (
    EMBEDDINGS,
    TABLE,
    ExportContent,
    ExportedTable,
    ExportManifest,
    FieldRows,
    SizesBefore,
)
from sparsegroup.serving.finite_rows import check_rows
from sparsegroup.serving.frozen_copy import tables_of
from sparsegroup.serving.frozen_model import FrozenModel
from sparsegroup.serving.trained_model import TrainedModel
from sparsegroup.settings.names import Dtype
from sparsegroup.training.lookup_model import LookupModel

NO_FILE = FileFacts(0, "")
"""Until a file is written."""


@dataclass(frozen=True)
class ExportDraft:
    """What is to be written.

    Attributes:
        draft: The manifest, but for what follows from the files.
        tables: Name → the live rows of a table.
        model: What serves them.
        vocabularies: Files of key, field and value.
        trained: The model as it was trained, if it is at hand.
    """

    draft: ExportManifest
    tables: Mapping[str, Embeddings]
    model: FrozenModel
    vocabularies: Sequence[Path]
    trained: LookupModel | None = None

    @property
    def keys(self) -> Tensor:
        """The keys of all tables."""
        return torch.cat([rows.keys for rows in self.tables.values()])


def draft_of(trained: TrainedModel, dtype: Dtype) -> ExportDraft:
    """The live rows in a format, the network, and what a manifest says of them.

    Raises:
        ExportError: Vectors that the format does not have.
        RunError: Vectors that are not finite.
    """
    check_rows(trained.path, trained.model.rows)
    tables = tables_of(trained.model)
    rows = {name: live_rows(table, dtype) for name, table in tables.items()}
    earlier = trained.manifest
    counts = trained.field_counts()
    seen = {
        name: table.num_seen if earlier is None else earlier.tables[name].features_seen
        for name, table in tables.items()
    }
    live = _live_by_field(torch.cat([one.keys for one in rows.values()]), trained.columns.fields)
    draft = ExportManifest(
        kind="export",
        source=str(trained.path),
        dtype=dtype,
        tables={
            name: ExportedTable(
                file=EMBEDDINGS if name == TABLE else file_of(name),
                dim=table.dim,
                live_rows=len(rows[name]),
                features_seen=seen[name],
                zero_rows=table.num_live - len(rows[name]),
            )
            for name, table in tables.items()
        },
        columns=json.loads(json.dumps(asdict(trained.columns))),
        config=trained.config.as_dict(),
        fields={name: FieldRows(live=live[name], seen=counts[name].seen) for name in trained.columns.fields},
        before=(
            SizesBefore(
                dense=sum(seen[name] * table.dim * 4 for name, table in tables.items()),
                table=sum(table.memory().content for table in tables.values()),
            )
            if earlier is None
            else earlier.before
        ),
        content=ExportContent(tables=dict.fromkeys(tables, NO_FILE), network=NO_FILE),
    )
    vocabularies = () if trained.vocabulary is None else (trained.vocabulary,)
    return ExportDraft(draft, rows, FrozenModel.of(trained.model, rows), vocabularies, trained.model)


def _live_by_field(keys: Tensor, fields: tuple[str, ...]) -> Mapping[str, int]:
    counts = np.bincount(fields_of(keys.numpy()), minlength=len(fields))
    return {name: int(counts[number]) for number, name in enumerate(fields)}
