"""The charts: what they are made of, without pages."""
