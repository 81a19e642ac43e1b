"""Tensor parallelism: what each rank holds of a value, and how the ranks move it."""
