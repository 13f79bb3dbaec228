"""The HTTP API: JSON in, JSON out, errors as problem documents."""
