"""How readings of real nodes come in; foreign units and shapes end here."""
