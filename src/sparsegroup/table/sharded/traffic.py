"""What a rank has sent to others, and how long it has waited for them."""

from dataclasses import dataclass


@dataclass
class Traffic:
    """Counts of one table on one rank, since it was made.

    Attributes:
        lookups: Exchanges of keys.
        keys: Bytes of keys that went to other ranks, and of their numbers.
        vectors: Bytes of vectors, likewise.
        gradients: Bytes of gradients, likewise.
        waited: Seconds in which the thread that trains has waited for other ranks, or for what is looked up ahead.
    """

    lookups: int = 0
    keys: int = 0
    vectors: int = 0
    gradients: int = 0
    waited: float = 0.0

    @property
    def sent(self) -> int:
        """All bytes that went to other ranks."""
        return self.keys + self.vectors + self.gradients
