"""What is wrong with a run."""


class RunError(ValueError):
    """A folder that holds no run, or a run that does not fit what is asked of it."""
