"""What a long run will cost and yield, from what a short one showed."""
