"""Charts: from what the store holds to what a page's script draws."""
