"""What is to be exported of a trained model."""

import json
from collections.abc import Mapping
from dataclasses import asdict

import numpy as np

from sparsegroup import __version__
from sparsegroup.data.keys import fields_of
from sparsegroup.serving.embeddings import Embeddings, live_rows
from sparsegroup.serving.manifest import Before, Content, FileInfo, Manifest, Rows
from sparsegroup.serving.quantize import Dtype
from sparsegroup.serving.trained_model import TrainedModel
from sparsegroup.serving.writing import Parts
from sparsegroup.table import FieldCount

_NO_FILE = FileInfo(bytes=0, xxh3_64="")


def parts_of(trained: TrainedModel, dtype: Dtype) -> Parts:
    """The live rows in a format, the network, and what a manifest says of them.

    Raises:
        ExportError: Vectors that the format does not have.
    """
    embeddings = live_rows(trained.model.embedding, dtype)
    earlier = trained.manifest
    seen = _seen_by_field(trained)
    table = trained.model.embedding
    features_seen = table.num_seen if earlier is None else earlier.features_seen
    live = _live_by_field(embeddings, trained.columns.fields)
    draft = Manifest(
        kind="export",
        id="",
        version=__version__,
        source=str(trained.path),
        dtype=dtype,
        dim=embeddings.dim,
        columns=json.loads(json.dumps(asdict(trained.columns))),
        config=trained.config.as_dict(),
        live_rows=len(embeddings),
        features_seen=features_seen,
        feature_rate=len(embeddings) / features_seen if features_seen else 0.0,
        zero_rows=table.num_live - len(embeddings),
        fields={name: Rows(live=live[name], seen=seen[name]) for name in trained.columns.fields},
        before=(
            Before(dense=features_seen * embeddings.dim * 4, table=table.memory().total)
            if earlier is None
            else earlier.before
        ),
        content=Content(embeddings=_NO_FILE, network=_NO_FILE),
        files={},
    )
    vocabularies = () if trained.vocabulary is None else (trained.vocabulary,)
    return Parts(draft, embeddings, trained.model.network, vocabularies, trained.model)


def _seen_by_field(trained: TrainedModel) -> Mapping[str, int]:
    if trained.manifest is not None:
        return {name: rows.seen for name, rows in trained.manifest.fields.items()}
    counts = trained.model.embedding.field_counts()
    nothing = FieldCount(0, 0, 0)
    return {name: counts.get(number, nothing).seen for number, name in enumerate(trained.columns.fields)}


def _live_by_field(embeddings: Embeddings, fields: tuple[str, ...]) -> Mapping[str, int]:
    counts = np.bincount(fields_of(embeddings.keys.numpy()), minlength=len(fields))
    return {name: int(counts[number]) for number, name in enumerate(fields)}
