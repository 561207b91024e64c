"""`python -m sparsegroup`, and the command `sparsegroup`."""

from sparsegroup.cli import main

if __name__ == "__main__":
    main()
