"""Preflight of nodes before a run, and operator support."""
