"""Checks before a run: preflights of nodes, and support of operators."""
