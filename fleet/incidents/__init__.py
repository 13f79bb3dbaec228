"""An alert as an incident: what changed before it, what was like it, and what is kept of it."""
