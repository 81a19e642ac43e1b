"""Capture: one forward under a plan becomes a Trace."""
