"""What templates may say: figures, times, marks, and the frame of every page."""
