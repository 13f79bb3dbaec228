"""A shift, handed over: what happened, what is open, what must not be forgotten."""
