"""Tests of what an incident tells beyond its alert."""
