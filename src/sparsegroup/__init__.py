"""sparsegroup: adaptive optimizers with sparse group lasso, for models that are mostly embedding table.

A name is imported from its room when it is first used, so that `import sparsegroup` takes no time: what compiles
kernels, and torch itself, come with the optimizers and tables that need them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparsegroup.errors import missing
from sparsegroup.importing import uncollected

if TYPE_CHECKING:
    from sparsegroup.estimator import Classifier as Classifier
    from sparsegroup.estimator import Regressor as Regressor
    from sparsegroup.optim import (
        GroupAdagrad,
        GroupAdaHessian,
        GroupAdam,
        GroupAMSGrad,
        GroupFTRL,
        GroupMomentum,
        GroupOptimizer,
        GroupRowWiseAdagrad,
        GroupSGD,
    )
    from sparsegroup.optim.averaging import keep_zeros
    from sparsegroup.optim.param_groups import param_groups
    from sparsegroup.optim.target import TargetBytes, TargetRate
    from sparsegroup.penalties import MCP, Penalty
    from sparsegroup.rules import Rule
    from sparsegroup.serving import export as export
    from sparsegroup.sparsity import ParameterSparsity, SparsityReport, feature_rate, sparsity_report
    from sparsegroup.table import (
        LFU,
        LRU,
        FieldCount,
        FieldTables,
        HashEmbedding,
        HashEmbeddingBag,
        MinCount,
        Probabilistic,
        TableEmbedding,
        TableEmbeddingBag,
        TableMemory,
        UnusedFor,
        convert,
        field_keys,
        to_embeddings,
    )
    from sparsegroup.training import Trainer as Trainer

    __version__: str

__all__ = [
    "LFU", "LRU", "MCP", "FieldCount", "FieldTables", "GroupAMSGrad", "GroupAdaHessian", "GroupAdagrad",
    "GroupAdam", "GroupFTRL", "GroupMomentum", "GroupOptimizer", "GroupRowWiseAdagrad", "GroupSGD", "HashEmbedding",
    "HashEmbeddingBag", "MinCount", "ParameterSparsity", "Penalty", "Probabilistic", "Rule", "SparsityReport",
    "TableEmbedding", "TableEmbeddingBag", "TableMemory", "TargetBytes", "TargetRate", "UnusedFor", "convert",
    "feature_rate", "field_keys", "keep_zeros", "param_groups", "sparsity_report", "to_embeddings",
]  # fmt: skip

_ROOMS = ("rules", "penalties", "optim", "sparsity", "table")
"""Where the names are, in the order in which one needs the other."""

_WITH_CLI = {"Classifier": "estimator", "Regressor": "estimator", "Trainer": "training", "export": "serving"}
"""Names that need the extra `cli`, so that `import *` leaves them out, and their rooms, which raise without it."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version(__name__)
    elif name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    elif name in __all__:
        modules = (import_module(f"{__name__}.{room}") for room in _ROOMS)
        with uncollected():
            value = next(vars(module)[name] for module in modules if name in vars(module))
    elif name in _WITH_CLI:
        value = getattr(import_module(f"{__name__}.{_WITH_CLI[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *(() if missing("cli") else _WITH_CLI), "__version__"})
