"""From an alert's timeline to the outbox."""
