"""Who may come in and do what: roles, people, bearer tokens, how often one may knock."""
