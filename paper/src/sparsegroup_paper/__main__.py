"""`python -m sparsegroup_paper`, the same as `sparsegroup-paper`."""

from sparsegroup_paper.command_line import main

if __name__ == "__main__":
    main()
