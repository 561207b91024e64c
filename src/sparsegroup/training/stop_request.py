"""Asking a training to end before its time, from wherever one is."""


class StopRequest:
    """Whether a training is asked to end. Setting it takes no lock: threads and signal handlers may.

    Attributes:
        is_made: It is asked to end.
        finishes: For good: the epoch ends with it, and no other follows.
    """

    def __init__(self) -> None:
        self.is_made = self.finishes = False

    def make(self, *, finish: bool) -> None:
        """Ask for it; who has asked for the end for good is not overruled."""
        self.finishes = self.finishes or finish
        self.is_made = True

    def withdraw(self) -> None:
        """Nothing is asked for."""
        self.is_made = self.finishes = False
