"""Grafana's dashboards: what they show, in words and PromQL; their JSON is written from it."""
