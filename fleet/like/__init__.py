"""Like runs: the same training on the same nodes with other settings, and what those brought."""
