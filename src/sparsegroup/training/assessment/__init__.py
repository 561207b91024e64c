"""What is to be said of a model: against its baseline, by column, and its largest features."""
