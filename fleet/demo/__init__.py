"""The demo: a fleet of four teams, a past to look at, and weather."""
