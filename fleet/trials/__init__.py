"""Trials: matching of arms, their figures, and the verdict."""
