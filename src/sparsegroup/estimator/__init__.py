"""The click model as an estimator in scikit-learn's conventions."""

from sparsegroup.constructor_help import document_constructors
from sparsegroup.extras import require

require("cli", __name__)

from sparsegroup.estimator.classifier import Classifier
from sparsegroup.estimator.expected_failures import EXPECTED_FAILED_CHECKS

__all__ = ["EXPECTED_FAILED_CHECKS", "Classifier"]

document_constructors(globals())
