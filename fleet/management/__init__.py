"""What can be asked of trnwatch on the command line."""
