"""Who may come in and do what."""
