"""What is said of alerts, nodes and runs: figures made into sentences and lists."""
