"""Real nodes on their way in: from lines to blocks in the store and rows of their own."""
