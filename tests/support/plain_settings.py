"""Settings for tests of what is trained, that no log decides."""

from typing import Any

from sparsegroup.training import Config

PLAIN = {
    **{"model": "dcn", "fallback": False, "number_buckets": 0, "standardize": False, "base_rate": False},
    **{"optimizer": "adam", "l21": 1e-3, "penalty": "lasso", "batch_size": 512, "shuffle_buffer": 0},
}


def plain(**settings: Any) -> Config:
    """Adam with a constant λ21 over a DCN, numbers as they are, in the order of the log; but for `settings`."""
    is_sized = settings.keys() & {"target_rate", "target_bytes"}
    return Config.of(**PLAIN | ({"l21": None, "penalty": None} if is_sized else {}) | settings)
