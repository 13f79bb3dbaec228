"""What machines talk to: JSON in, JSON out, errors as problem documents."""
