"""Management commands, and what they share."""
