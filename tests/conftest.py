"""What every test may ask for: a real Redis of its own, and nodes with characters."""
