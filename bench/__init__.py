"""What trnwatch costs: measured, beside a peer in the same run."""
