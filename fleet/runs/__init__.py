"""Runs and nodes: state, summaries, steps, compiles, annotations, prices and similar runs."""
