"""What things cost: prices, what is paid for, what an alert has lost."""
