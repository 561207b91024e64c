"""Names to choose by in settings and on the command line; nothing that takes time to import."""

from collections.abc import Mapping
from typing import Literal

OptimizerName = Literal["sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "amsgrad", "adahessian", "ftrl"]
ModelName = Literal["lr", "fm", "deepfm", "mlp", "opnn", "dcn", "dcnv2", "xdeepfm", "mmoe", "ple"]
ModelChoice = Literal["auto", ModelName]
DatasetName = Literal["auto", "avazu", "criteo", "ipinyou"]
ColumnsName = Literal["categorical"]
ObjectiveName = Literal[
    "logistic", "squared", "huber", "quantile", "poisson", "gamma", "tweedie", "binomial", "pairwise", "lambdarank",
    "softmax", "esmm", "fake_negatives",
]  # fmt: skip
LabelsName = Literal["binary", "numbers", "classes"]
CriteoNumbers = Literal["log", "buckets"]
AvazuHour = Literal["hour", "weekday-hour", "raw"]
OnBadRow = Literal["error", "skip"]
SortFiles = Literal["name", "time", "given"]
StateDtype = Literal["float32", "bfloat16"]
Dtype = Literal["float32", "float16", "bfloat16", "int8", "int4"]
KeyFormat = Literal["full", "fingerprints"]
ProgramName = Literal["program", "onnx"]
ScheduleName = Literal["constant", "linear", "cosine"]
AfterFirstEpoch = Literal["train", "reset", "freeze"]

_MODEL_TITLES: Mapping[str, str] = {"deepfm": "DeepFM", "dcnv2": "DCNv2", "xdeepfm": "xDeepFM", "mmoe": "MMoE"}
_OPTIMIZER_TITLES: Mapping[str, str] = {
    "sgd": "SGD",
    "rowwise_adagrad": "row-wise Adagrad",
    "amsgrad": "AMSGrad",
    "adahessian": "AdaHessian",
    "ftrl": "FTRL",
}


def model_title(name: str) -> str:
    """The usual spelling of a network's name: "DCNv2" for "dcnv2"."""
    return _MODEL_TITLES.get(name, name.upper())


def optimizer_title(name: str) -> str:
    """The title of an optimizer: "Group Adagrad" for "adagrad"."""
    return f"Group {_OPTIMIZER_TITLES.get(name, name.capitalize())}"
