"""The simulated fleet: its plans, its clocks, and the drills that people put into it."""
