"""Outgoing notifications: outbox, routes, channels, and a sender with retries."""
