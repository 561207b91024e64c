"""The settings of a run as its report shows them: with what stood open filled in."""

import inspect
from typing import Any

from sparsegroup.training.click_model import NETWORKS
from sparsegroup.training.config import Config


def shown_settings(config: Config, samples: int) -> dict[str, Any]:
    """Section → setting → value: defaults of the network and the optimizer filled in, what is not set left out.

    Args:
        config: The settings.
        samples: Trained on in this run, on which it depends whether the network was to be compiled.
    """
    content = config.as_dict()
    model, optimizer, training = content["model"], content["optimizer"], content["training"]
    model["dim"] = config.model.vector_dim
    parameters = inspect.signature(NETWORKS[config.model.name]).parameters
    for name, value in model.items():
        if value is None and name in parameters:
            model[name] = parameters[name].default
    arguments = config.optimizer.arguments
    optimizer["options"] = {
        one.name: arguments[one.name] for one in config.optimizer.rule.hyperparameters if one.name != "lr"
    }
    optimizer["lr"] = arguments["lr"]
    if config.optimizer.has_target:  # which sets it along the way
        del optimizer["l21"]
    if config.data.log is not None:
        del content["data"]["rows"]  # of a synthetic log
    training["compile"] = config.training.compiles(samples)
    return {
        section: {name: value for name, value in settings.items() if value not in (None, "", [], {})}
        for section, settings in content.items()
    }
