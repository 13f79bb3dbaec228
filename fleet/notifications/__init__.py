"""Notifications on their way out: what receivers speak, and a sender that tries again."""
