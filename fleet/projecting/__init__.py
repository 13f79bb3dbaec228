"""Schedules: what long runs will cost on each arm of a trial, and when a move is earned back."""
