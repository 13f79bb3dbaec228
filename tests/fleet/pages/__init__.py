"""The pages of nodes, runs and alerts, one file per page."""
