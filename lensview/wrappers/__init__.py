"""Wrappers: what is transparent to a capture, and what makes one impossible."""
