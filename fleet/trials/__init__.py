"""Trials: what must be the same of their arms, what the arms showed, and what to make of it."""
