"""What is recorded of a run, and how it is shown: charts, figures in words, and pages that need nothing else."""

from sparsegroup.errors import require

require("cli", __name__)
