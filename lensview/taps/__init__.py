"""Taps: how values are taken from a running model, and put back. See README.md here."""
