"""The simulated fleet: what nodes and runs would report."""
