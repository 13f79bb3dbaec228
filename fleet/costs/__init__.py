"""Costs: spending, budgets, drift, and what alerts have lost."""
