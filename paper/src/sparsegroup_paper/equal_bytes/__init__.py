"""An experiment beyond the paper: AUC at equal served bytes, against published ways to a small table."""
