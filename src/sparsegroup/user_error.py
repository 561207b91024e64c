"""What a user can mend."""


class UserError(ValueError):
    """Base of this package's errors about files, settings and arguments: the command line shows the message alone."""
