"""What stands still: steps, compiles, telemetry; and what its machines do meanwhile."""
