"""Copies of the database in one file each, and the way back."""
