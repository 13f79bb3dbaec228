"""Statistics of trials, steps and long runs."""
