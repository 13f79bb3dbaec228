"""Ingest of real nodes and training jobs, and import of logs and traces."""
