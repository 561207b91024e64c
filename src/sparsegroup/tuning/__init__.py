"""The search for settings: what is searched, and a study in its folder."""

from sparsegroup.errors import require
from sparsegroup.importing import document_constructors

require("tune", __name__)

from sparsegroup.tuning.space import SearchSpace
from sparsegroup.tuning.study import RungScore, Study, TrialRecord, TuningError

__all__ = ["RungScore", "SearchSpace", "Study", "TrialRecord", "TuningError"]

document_constructors(globals())
