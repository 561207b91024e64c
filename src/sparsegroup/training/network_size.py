"""What a network takes in memory, told before it is made."""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def check_network_memory(make: Callable[[], nn.Module], state_tensors: int, batch_size: int) -> None:
    """Raise where a network's training would take more memory than the machine has. torch's generators stay untouched.

    Args:
        make: Makes it; called under the device "meta", where tensors have no content.
        state_tensors: What its optimizer keeps for each weight.
        batch_size: Samples that go through it at a time.

    Raises:
        ValueError: It would; the error says how many weights and bytes.
    """
    network = outlined(make)
    parameters = list(network.parameters())
    weights = sum(parameter.numel() for parameter in parameters)
    widest = max((parameter.element_size() for parameter in parameters), default=0)
    outputs = sum(layer.out_features for layer in network.modules() if isinstance(layer, nn.Linear))
    # Weights and outputs have gradients.
    needed = widest * ((2 + state_tensors) * weights + 2 * batch_size * outputs)
    if (there := machine_bytes()) is not None and needed > there:
        raise ValueError(
            f"the network has {weights:,} weights, and its layers give {outputs:,} numbers for each of {batch_size} "
            f"samples: to train it takes {needed:,} bytes, and this machine has {there:,}. Take smaller layers "
            "(hidden) or vectors (dim), or a smaller batch_size"
        )


def outlined(make: Callable[[], nn.Module]) -> nn.Module:
    """The network without content: its tensors are on the device "meta". torch's generators stay untouched.

    Args:
        make: Makes it; called under that device.

    Raises:
        ValueError: No tensor may have so many elements as one of its would.
    """
    with torch.device("meta"), _Unfilled(), torch.random.fork_rng(devices=[]):
        try:
            return make()
        except (RuntimeError, OverflowError, TypeError) as error:
            first_line = str(error).partition("\n")[0]
            raise ValueError(f"the network is larger than any machine's memory ({first_line})") from error


class _Unfilled(TorchFunctionMode):
    """Random numbers for what has no content are not drawn: on "meta" that would import torch.compile, for a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func in (Tensor.normal_, Tensor.uniform_) else func(*args, **(kwargs or {}))


def machine_bytes() -> int | None:
    """The memory of this machine; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
