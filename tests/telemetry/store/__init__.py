"""The store: hot in a real Redis, durable in a real database."""
