"""What goes wrong with checkpoints."""

from sparsegroup.user_error import UserError


class CheckpointError(UserError):
    """A checkpoint that cannot be written or read. The message names the file and what is wrong with it."""
