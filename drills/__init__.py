"""Scenarios played ahead of time through detection and alerts, and how well they did."""
