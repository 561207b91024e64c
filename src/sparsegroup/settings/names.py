"""Names to choose by in settings and on the command line; nothing that takes time to import."""

from collections.abc import Mapping
from typing import Literal, get_args

from sparsegroup.errors import did_you_mean

OptimizerName = Literal["sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "amsgrad", "adahessian", "ftrl"]
ModelName = Literal["lr", "fm", "deepfm", "mlp", "opnn", "dcn", "dcnv2", "xdeepfm"]
ModelChoice = Literal["auto", ModelName]
DatasetName = Literal["auto", "avazu", "criteo", "ipinyou"]
ColumnsName = Literal["categorical"]
CriteoNumbers = Literal["log", "buckets"]
AvazuHour = Literal["hour", "weekday-hour", "raw"]
OnBadRow = Literal["error", "skip"]
SortFiles = Literal["name", "time", "given"]
StateDtype = Literal["float32", "bfloat16"]
Dtype = Literal["float32", "float16", "bfloat16", "int8"]
ProgramName = Literal["program", "onnx"]
ScheduleName = Literal["constant", "linear", "cosine"]
AfterFirstEpoch = Literal["train", "reset", "freeze"]

_MODEL_TITLES: Mapping[str, str] = {"deepfm": "DeepFM", "dcnv2": "DCNv2", "xdeepfm": "xDeepFM"}
_OPTIMIZER_TITLES: Mapping[str, str] = {
    "sgd": "SGD",
    "rowwise_adagrad": "row-wise Adagrad",
    "amsgrad": "AMSGrad",
    "adahessian": "AdaHessian",
    "ftrl": "FTRL",
}

OTHER_OPTIMIZERS: Mapping[str, str] = {
    "adamw": "take adam, with l2 (of the embeddings) in place of decoupled weight decay",
    "sparseadam": "take adam, which steps only the rows of a batch",
    "lazyadam": "take adam, which steps only the rows of a batch",
    "rmsprop": "take adam or adagrad, or see examples/rmsprop.py",
    "adadelta": "take adagrad",
    "nadam": "take adam",
    "radam": "take adam",
    "adamax": "take adam or amsgrad",
    "nesterov": "take momentum, with options={momentum: 0.9, nesterov: true}",
    "ftrl-proximal": "take ftrl",
    "lbfgs": "take adahessian for second derivatives",
}
"""Optimizers by their names elsewhere → what to take."""


def model_title(name: str) -> str:
    """The usual spelling of a network's name: "DCNv2" for "dcnv2"."""
    return _MODEL_TITLES.get(name, name.upper())


def optimizer_title(name: str) -> str:
    """The title of an optimizer: "Group Adagrad" for "adagrad"."""
    return f"Group {_OPTIMIZER_TITLES.get(name, name.capitalize())}"


def unknown_optimizer(name: str) -> str | None:
    """What is wrong with the name of an optimizer, and what to take; None if it exists."""
    known = get_args(OptimizerName)
    if name in known:
        return None
    hint = OTHER_OPTIMIZERS.get(name.lower()) or did_you_mean(name.lower(), known)
    there = f"{name!r} is not one of {', '.join(map(repr, known))}"
    return f"{there}; {hint}" if hint else there
