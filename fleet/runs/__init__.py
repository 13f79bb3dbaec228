"""Prices: what a team has agreed, what the catalogue has published, and what a run pays."""
