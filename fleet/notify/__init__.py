"""Notifications on their way out: what each kind of receiver speaks, and a sender that retries."""
