"""Whether a network of recorded settings is the one whose weights were recorded, before memory is taken for it."""

from collections.abc import Mapping

from torch import Tensor

from sparsegroup.data.schema import LogSchema
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training.config import Config
from sparsegroup.training.network_size import outlined


def check_network_shapes(config: Config, columns: LogSchema, weights: Mapping[str, Tensor]) -> None:
    """Compare the shapes of the network that the settings describe with those of weights.

    Args:
        config: The settings.
        columns: The columns of its logs.
        weights: The network's `state_dict`; what else is in it is passed over.

    Raises:
        SettingsError: The network has other shapes, or cannot be built. Nothing was allocated for it.
    """
    try:
        network = outlined(lambda: config.model.network(columns))
    except ValueError as error:
        raise SettingsError(f"model: {error}") from error
    for name, weight in network.state_dict().items():
        recorded = weights.get(name)
        if not isinstance(recorded, Tensor) or recorded.shape != weight.shape:
            found = list(recorded.shape) if isinstance(recorded, Tensor) else "no tensor"
            raise SettingsError(f"model: its {name} would have the shape {list(weight.shape)}, the recorded is {found}")
