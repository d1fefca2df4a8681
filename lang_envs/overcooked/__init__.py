"""Overcooked: one cook prepares and delivers salads."""
