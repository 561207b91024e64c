"""What is to be exported of a trained model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from torch import nn

from sparsegroup.artifact.file_facts import FileFacts
from sparsegroup.data.keys import fields_of
from sparsegroup.names import Dtype
from sparsegroup.serving.embeddings import Embeddings, live_rows
from sparsegroup.serving.export_manifest import (
    EMBEDDINGS,
    TABLE,
    ExportContent,
    ExportedTable,
    ExportManifest,
    FieldRows,
    SizesBefore,
)
from sparsegroup.serving.trained_model import TrainedModel
from sparsegroup.training.lookup_model import LookupModel

NO_FILE = FileFacts(0, "")
"""Until a file is written."""


@dataclass(frozen=True)
class ExportDraft:
    """What is to be written.

    Attributes:
        draft: The manifest, but for what follows from the files.
        embeddings: The live rows.
        network: The network over them.
        vocabularies: Files of key, field and value.
        trained: The model as it was trained, if it is at hand.
    """

    draft: ExportManifest
    embeddings: Embeddings
    network: nn.Module
    vocabularies: Sequence[Path]
    trained: LookupModel | None = None


def draft_of(trained: TrainedModel, dtype: Dtype) -> ExportDraft:
    """The live rows in a format, the network, and what a manifest says of them.

    Raises:
        ExportError: Vectors that the format does not have.
    """
    embeddings = live_rows(trained.model.embedding, dtype)
    earlier = trained.manifest
    counts = trained.field_counts()
    table = trained.model.embedding
    features_seen = table.num_seen if earlier is None else earlier.features_seen
    live = _live_by_field(embeddings, trained.columns.fields)
    draft = ExportManifest(
        kind="export",
        source=str(trained.path),
        dtype=dtype,
        tables={
            TABLE: ExportedTable(
                file=EMBEDDINGS,
                dim=embeddings.dim,
                live_rows=len(embeddings),
                features_seen=features_seen,
                zero_rows=table.num_live - len(embeddings),
            )
        },
        columns=json.loads(json.dumps(asdict(trained.columns))),
        config=trained.config.as_dict(),
        fields={name: FieldRows(live=live[name], seen=counts[name].seen) for name in trained.columns.fields},
        before=(
            SizesBefore(dense=features_seen * embeddings.dim * 4, table=table.memory().total)
            if earlier is None
            else earlier.before
        ),
        content=ExportContent(tables={TABLE: NO_FILE}, network=NO_FILE),
    )
    vocabularies = () if trained.vocabulary is None else (trained.vocabulary,)
    return ExportDraft(draft, embeddings, trained.model.network, vocabularies, trained.model)


def _live_by_field(embeddings: Embeddings, fields: tuple[str, ...]) -> Mapping[str, int]:
    counts = np.bincount(fields_of(embeddings.keys.numpy()), minlength=len(fields))
    return {name: int(counts[number]) for number, name in enumerate(fields)}
