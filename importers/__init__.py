"""Imports of what others recorded: training logs, traces and exports of trackers become runs."""
