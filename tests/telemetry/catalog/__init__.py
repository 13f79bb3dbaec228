"""What exists, and where that was read."""
