"""Silences: what they mute, and for how long."""
