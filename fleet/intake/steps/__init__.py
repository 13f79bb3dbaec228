"""Training jobs on their way in: what their workers report becomes runs and steps."""
