"""What is recorded of a run, and how it is shown: charts, figures in words, and pages that need nothing else."""
