"""A look into a trained model: its sizes, which features it kept, and what λ did."""
