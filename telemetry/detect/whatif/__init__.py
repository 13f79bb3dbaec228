"""What if nobody had been slow: a recorded trace, replayed with other durations."""
