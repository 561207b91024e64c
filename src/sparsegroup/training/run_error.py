"""What is wrong with a run."""

from sparsegroup.errors import UserError


class RunError(UserError):
    """A folder that holds no run, or a run that does not fit what is asked of it."""


class RunStoppedError(RunError):
    """A run that `Trainer.stop` has interrupted. `Session.resume` continues it from the checkpoint of that moment."""
