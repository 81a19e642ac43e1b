"""Traces: what runs saw, kept, compared, stored."""
