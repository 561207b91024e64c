"""`python -m sparsegroup`, and the command `sparsegroup`."""

import sys

from sparsegroup.errors import MissingExtraError
from sparsegroup.importing import ended_by_interrupt, uncollected


def main() -> None:
    """Run the command line, or name what to install for it."""
    try:
        with ended_by_interrupt(), uncollected():
            from sparsegroup.cli import main as run
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
    run()


if __name__ == "__main__":
    main()
