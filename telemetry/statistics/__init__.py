"""Two runs that train the same thing beside each other: how they differ, and how surely."""
