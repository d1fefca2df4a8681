"""Measurements of what hostile files and faults do to the suite."""
