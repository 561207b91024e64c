"""Names that people choose by, in settings and on the command line; nothing that takes time to import."""

from typing import Literal

NormName = Literal["s", "s_tilde", "metric"]
"""The names of `PracticalNorm`, `PrintedNorm` and `MetricNorm`."""

PenaltyName = Literal["lasso", "mcp", "hard"]
"""The names of `Lasso`, `MCP` and `Hard`."""

OptimizerName = Literal["sgd", "momentum", "adagrad", "adam", "amsgrad", "adahessian", "ftrl"]
ModelName = Literal["lr", "fm", "deepfm", "mlp", "opnn", "dcn", "dcnv2", "xdeepfm"]
ModelChoice = Literal["auto", ModelName]
DatasetName = Literal["auto", "avazu", "criteo", "ipinyou"]
ColumnsName = Literal["categorical"]
ShapeName = Literal["avazu", "criteo", "ipinyou", "clicks"]
CriteoNumbers = Literal["log", "buckets"]
AvazuHour = Literal["hour", "weekday-hour", "raw"]
OnBadRow = Literal["error", "skip"]
SortFiles = Literal["name", "time", "given"]
Dtype = Literal["float32", "float16", "bfloat16", "int8"]
ProgramName = Literal["program", "onnx"]
ScheduleName = Literal["constant", "linear", "cosine"]
AfterFirstEpoch = Literal["train", "reset", "freeze"]
