"""Errors that a user can mend."""

from collections.abc import Callable


class UserError(ValueError):
    """Base of this package's errors about files, settings and arguments: the command line shows only the message.

    Args:
        message: What was given, what is expected, where, and what to do. It names parameters as Python does.
        *parameters: The parameters named in backquotes, so that another interface can spell them in its own way.

    Examples:
        >>> error = UserError("`max_bad` must be below 1, got 2", "max_bad")
        >>> error.spelled(lambda name: "--" + name.replace("_", "-"))
        '--max-bad must be below 1, got 2'
    """

    is_told = False
    """Whether another rank reports it to the user."""

    def __init__(self, message: str = "", *parameters: str) -> None:
        super().__init__(message)
        self.parameters = parameters

    def spelled(self, spell: Callable[[str], str]) -> str:
        """The message with `spell(name)` for each parameter that it names."""
        message = str(self)
        for name in self.parameters:
            message = message.replace(f"`{name}`", spell(name))
        return message
