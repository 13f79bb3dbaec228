"""The simulated fleet: runs, drills, and the demo."""
