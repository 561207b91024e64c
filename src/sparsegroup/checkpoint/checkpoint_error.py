"""What goes wrong with checkpoints."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be written or read. The message names the file and what is wrong with it."""
