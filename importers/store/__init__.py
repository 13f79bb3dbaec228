"""What was read becomes rows: a finished run with its steps."""
