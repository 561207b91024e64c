"""The search for settings: what is searched, a study in its folder, and what it has come to."""

from sparsegroup.errors import require
from sparsegroup.importing import document_constructors

require("tune", __name__)

from sparsegroup.tuning.search_space import SearchSpace
from sparsegroup.tuning.study import Study
from sparsegroup.tuning.study_manifest import TuningError
from sparsegroup.tuning.trial_record import RungScore, TrialRecord

__all__ = ["RungScore", "SearchSpace", "Study", "TrialRecord", "TuningError"]

document_constructors(globals())
