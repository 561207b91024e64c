"""Models of frames, a classifier and a regressor, in scikit-learn's conventions."""

from sparsegroup.errors import require
from sparsegroup.importing import document_constructors

require("cli", __name__)

from sparsegroup.estimator.estimators import EXPECTED_FAILED_CHECKS, Classifier, Regressor

__all__ = ["EXPECTED_FAILED_CHECKS", "Classifier", "Regressor"]

document_constructors(globals())
