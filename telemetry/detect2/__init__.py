"""What is broken now, by evidence: quantities, residuals, tests, causes."""
