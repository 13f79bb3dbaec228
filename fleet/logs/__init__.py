"""A training log becomes a run: its steps, its compiles, its errors, all of it or nothing."""
