"""One command per module: estimate, ingest, up, and the like."""
