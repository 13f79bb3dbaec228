"""Names and people: runs, alerts, pages, and the rules by which they meet telemetry."""
