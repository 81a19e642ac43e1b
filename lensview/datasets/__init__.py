"""Datasets of activations: many items through one model, on disk as shards, and read back."""
