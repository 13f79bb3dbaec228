"""The long-term tier: any Prometheus-compatible store, read by PromQL."""
