"""What trnwatch gives Prometheus and Grafana to run: rules and dashboards, written as files."""
