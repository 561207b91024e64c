"""The click model as an estimator in scikit-learn's conventions."""

from sparsegroup.errors import require
from sparsegroup.importing import document_constructors

require("cli", __name__)

from sparsegroup.estimator.classifier import EXPECTED_FAILED_CHECKS, Classifier

__all__ = ["EXPECTED_FAILED_CHECKS", "Classifier"]

document_constructors(globals())
