"""Queries like those of AWS dashboards, on the names of AWS exporters."""

# Panels: means over everything, and by instance; rates of counters; shares.
PANELS = (
    "avg(neuroncore_utilization_ratio)",
    "avg by (instance_id) (neuroncore_utilization_ratio) * 100",
    "max by (instance_name, neuroncore) (neuroncore_utilization_ratio)",
    'sum by (neuroncore) (neuroncore_memory_usage_tensors{memory_location="None"})',
    "sum(neuroncore_memory_usage_constants)",
    "sum(neuroncore_memory_usage_model_code)",
    "sum(neuroncore_memory_usage_model_shared_scratchpad)",
    "sum(neuroncore_memory_usage_runtime_memory)",
    'sum by (instance_id) (neuron_runtime_memory_used_bytes{memory_location="neuron_device"})',
    'sum(rate(execution_status_total{status_type="completed"}[1m]))',
    'sum(rate(execution_status_total{status_type!="completed"}[1m]))',
    "sum by (error_type) (rate(execution_errors_total[1m]))",
    'avg(execution_latency_seconds{percentile="p99"}) by (instance_id)',
    'avg(execution_latency_seconds{percentile="p50"})',
    'sum by (event_type) (increase(hardware_ecc_events_total{event_type=~"mem_.*"}[1h]))',
    "sum(hardware_ecc_events_total) by (instance_id, neuron_device_index)",
    "avg(system_memory_used_bytes / system_memory_total_bytes)",
    'avg by (instance_id) (system_vcpu_usage_ratio{usage_type="user"})',
    "sum(system_vcpu_count)",
    'count(neuron_hardware_info{neuron_device_count!=""})',
    "sum by (node) (rate(node_amazonefa_tx_bytes[1m])) * 8",
    "sum(rate(node_amazonefa_rx_bytes[1m])) * 8",
    "sum by (device) (rate(node_amazonefa_retrans_pkts[1m])) "
    "/ sum by (device) (rate(node_amazonefa_tx_pkts[1m]))",
    "sum(rate(node_amazonefa_rx_drops[1m]))",
    "sum by (device) (increase(node_amazonefa_impaired_remote_conn_events[5m]))",
    "sum(increase(node_amazonefa_unresponsive_remote_events[5m]))",
    "count(node_amazonefa_info)",
)
# Variables: what one may choose by.
VARIABLES = (
    ("instance_info", "instance_id"),
    ("instance_info", "instance_type"),
    ("neuroncore_utilization_ratio", "neuroncore"),
    ("neuroncore_utilization_ratio", "availability_zone"),
)
