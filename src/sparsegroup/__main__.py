"""`python -m sparsegroup`, and the command `sparsegroup`."""

import sys

from sparsegroup.errors import MissingExtraError
from sparsegroup.importing import uncollected


def main() -> None:
    """Run the command line, or name what to install for it."""
    try:
        with uncollected():
            from sparsegroup.cli import main as run
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
    run()


if __name__ == "__main__":
    main()
