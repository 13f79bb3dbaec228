"""The physics of a training fleet: what nodes and runs would report. Knows no store."""
