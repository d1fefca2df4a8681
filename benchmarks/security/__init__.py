"""Attacks on the sandbox and on rewards, and faults on purpose: figures for ``docs/security.md``."""
