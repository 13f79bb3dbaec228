"""The families of the EFA exporter: one per hardware counter, by device and port."""

from collections.abc import Mapping

from telemetry.families import Spec

LABELS = ("device", "port")
# Where many nodes share a page; on its own page a node's series go without, as the exporter's do.
NODE = "node"

OF_PORTS: Mapping[str, str] = {
    "tx_bytes": "Bytes sent.",
    "tx_pkts": "Packets sent.",
    "rx_bytes": "Bytes received.",
    "rx_pkts": "Packets received.",
    "rx_drops": "Received packets dropped: the receiver had no buffer.",
    "send_bytes": "Bytes of send work requests.",
    "send_wrs": "Send work requests.",
    "recv_bytes": "Bytes of receive work requests.",
    "recv_wrs": "Receive work requests.",
    "rdma_read_wrs": "RDMA reads begun.",
    "rdma_read_bytes": "Bytes read by RDMA.",
    "rdma_read_wr_err": "RDMA reads that failed.",
    "rdma_read_resp_bytes": "Bytes served to RDMA reads of others.",
    "rdma_write_wrs": "RDMA writes begun.",
    "rdma_write_bytes": "Bytes written by RDMA.",
    "rdma_write_wr_err": "RDMA writes that failed.",
    "rdma_write_recv_bytes": "Bytes that others wrote here by RDMA.",
    "retrans_bytes": "Bytes sent again.",
    "retrans_pkts": "Packets sent again.",
    "retrans_timeout_events": "Times that traffic timed out and had to change its path.",
    "unresponsive_remote_events": "Connections whose peer became unresponsive.",
    "impaired_remote_conn_events": "Connections that were slowed down as impaired.",
    "lifespan": "Milliseconds between two refreshes of the counters.",
}
OF_DEVICES: Mapping[str, str] = {
    "submitted_cmds": "Administrative commands submitted.",
    "completed_cmds": "Administrative commands completed.",
    "cmds_err": "Administrative commands that failed.",
    "no_completion_cmds": "Administrative commands that timed out.",
    "keep_alive_rcvd": "Signs of life received from the device.",
    "alloc_pd_err": "Protection domains that could not be allocated.",
    "create_qp_err": "Queue pairs that could not be created.",
    "create_cq_err": "Completion queues that could not be created.",
    "reg_mr_err": "Memory regions that could not be registered.",
    "alloc_ucontext_err": "User contexts that could not be allocated.",
    "create_ah_err": "Address handles that could not be created.",
    "mmap_err": "Memory maps that failed.",
}
# Counters that some versions of the driver have.
OF_SOME_DRIVERS: Mapping[str, str] = {
    "alloc_mr_err": "Memory regions that could not be allocated.",
    "get_dma_mr_err": "DMA memory regions that could not be had.",
}
COUNTERS: Mapping[str, Spec] = {
    name: Spec(f"node_amazonefa_{name}", "counter", about, LABELS)
    for name, about in {**OF_PORTS, **OF_DEVICES, **OF_SOME_DRIVERS}.items()
}
INFO = Spec("node_amazonefa_info", "gauge", "An EFA device; always 1.", ("device",))
ALL = (*COUNTERS.values(), INFO)
