"""Where samples are kept: hot in Redis, durable in the database."""
