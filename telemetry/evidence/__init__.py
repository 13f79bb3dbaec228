"""Sequential evidence that a quantity has shifted: noise learned from the run, one budget."""
