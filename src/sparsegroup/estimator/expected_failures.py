"""What `check_estimator` asks for that a `Classifier` cannot do."""

from collections.abc import Mapping

EXPECTED_FAILED_CHECKS: Mapping[str, str] = {
    "check_sample_weight_equivalence_on_dense_data": (
        "it trains step by step on batches of rows: a row that comes twice, or is left out, makes other batches than "
        "one of weight 2 or 0, so that the models are near each other and not the same"
    ),
}
"""Name of a check of scikit-learn → why a `Classifier` fails it, for `check_estimator(expected_failed_checks=…)`."""
