"""The streams of a training's epochs."""

from collections.abc import Callable, Iterable, Iterator

from sparsegroup.settings.names import AfterFirstEpoch
from sparsegroup.training.evaluation import Sample

Epochs = Iterable[Sample] | Callable[[int], Iterable[Sample]]
"""The stream of each epoch: one that can be read again and again, or what gives it, by the epoch's number from 0."""


def of_epoch(stream: Epochs, epoch: int) -> Iterable[Sample]:
    """The stream of one epoch."""
    return stream(epoch) if callable(stream) else stream


def check_epochs(
    stream: Epochs, epochs: int, validation: Epochs | None, patience: int, after_first_epoch: AfterFirstEpoch
) -> None:
    """Raise ValueError unless `Trainer.fit` can be given that; see there."""
    for name, value, least in (("epochs", epochs, 1), ("patience", patience, 0)):
        if value < least:
            raise ValueError(f"{name} must be >= {least}, got {value}")
    if patience and validation is None:
        raise ValueError(f"patience={patience} needs the validation log loss: give validation")
    if after_first_epoch not in ("train", "reset", "freeze"):
        raise ValueError(f"after_first_epoch must be 'train', 'reset' or 'freeze', got {after_first_epoch!r}")
    for name, given in (("stream", stream), ("validation", validation)):
        if epochs > 1 and isinstance(given, Iterator):
            raise ValueError(
                f"{name} is used up by the first of {epochs} epochs: give one that can be read again, such as a "
                "DataLoader or a list, or a function of the epoch's number"
            )
