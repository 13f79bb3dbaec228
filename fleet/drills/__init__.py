"""Drills played ahead of time: a scenario through detection and alerts, and how well they did."""
