"""The long-term tier: any Prometheus-compatible store, by remote write and PromQL."""
