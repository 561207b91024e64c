"""What is done as long as it pays."""


class Habit:
    """Something that is done as long as it pays; when it has not, there is a pause, twice as long each time."""

    _LONGEST = 63

    def __init__(self) -> None:
        self._pause = self._left = 0

    def is_worth_it(self) -> bool:
        """Whether to do it this time."""
        self._left -= 1
        return self._left < 0

    def note(self, paid: bool) -> None:
        """It has been done."""
        self._pause = 0 if paid else min(2 * self._pause + 1, self._LONGEST)
        self._left = self._pause
