"""Pages: one view per address, and what they are made of."""
