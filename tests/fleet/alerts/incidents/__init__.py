"""Tests of the context of an alert: changes, similar alerts, charts."""
