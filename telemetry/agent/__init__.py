"""What runs on a node: reads what the machine says, spools it, and posts it; standard library."""

VERSION = "1"
