"""One collective on its own, as nccom-test or nccl-tests would measure it."""

from collections.abc import Callable, Mapping

from telemetry.catalog import Instance
from telemetry.simulate.fabrics import FABRICS, CollectiveTime, Traffic

__all__ = ["OPS", "CollectiveError", "CollectiveTime", "bus_bytes_per_s", "collective_time_s"]


class CollectiveError(ValueError):
    """A collective that can't run: says the field and the remedy."""

    def __init__(self, field: str, remedy: str) -> None:
        """Keep the field beside the message."""
        super().__init__(f"{field}: {remedy}")
        self.field = field


def _twice(n: int) -> float:
    return 2 * (n - 1) / n


def _once(n: int) -> float:
    return (n - 1) / n


# How often the message passes each rank's link in a ring of n.
OPS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": _twice,
    "all_gather": _once,
    "reduce_scatter": _once,
    "all_to_all": _once,
}


def collective_time_s(
    instance: Instance, *, n_nodes: int, n_ranks: int, n_bytes: int, op: str = "all_reduce"
) -> CollectiveTime:
    """Predict how long one collective takes.

    Parameters
    ----------
    instance : type of every node
        Its chip decides on the fabric, its links on the rates.
    n_nodes, n_ranks : counts
        Ranks are cores as the runtime counts them, spread evenly over the nodes.
    n_bytes : bytes
        The message as the tools print its size: what each rank reduces, gathers in all,
        starts from, or sends in all.
    op
        One of OPS.

    Returns
    -------
    time : latency and bandwidth parts, seconds

    Notes
    -----
    Two levels: a ring inside each node, then between nodes with all ranks of a node side by
    side. Calibrated on nccom-test for Trainium1, nccl-tests for GPUs, and on AWS's published
    cost model for Trainium2, for which no multi-node run is public.

    References
    ----------
    aws-neuron-sdk, neuron-runtime/about/collectives.rst and nccom-test.rst.

    Examples
    --------
    >>> from telemetry.catalog import instance
    >>> one = collective_time_s(instance("trn1.32xlarge"), n_nodes=2, n_ranks=64, n_bytes=2**30)
    >>> round(one.total_s, 3)
    0.042
    """
    _check(instance, n_nodes, n_ranks, n_bytes, op)
    local = n_ranks // n_nodes
    if op == "all_to_all":
        inside, outside = (local - 1) / n_ranks, local * (n_ranks - local) / n_ranks
    else:
        inside, outside = OPS[op](local), OPS[op](n_nodes)
    traffic = Traffic(
        op=op,
        n_nodes=n_nodes,
        n_ranks=n_ranks,
        n_bytes=n_bytes,
        local_bytes=inside * n_bytes,
        network_bytes=outside * n_bytes,
        link_bytes_per_s=instance.link_bytes_per_s,
        network_bytes_per_s=instance.network_bytes_per_s,
    )
    return FABRICS[instance.chip.name].time(traffic)


def bus_bytes_per_s(time: CollectiveTime, *, n_ranks: int, n_bytes: int, op: str) -> float:
    """Return the bus bandwidth: bytes that passed each link of a flat ring, per second."""
    return OPS[op](n_ranks) * n_bytes / time.total_s


def _check(instance: Instance, n_nodes: int, n_ranks: int, n_bytes: int, op: str) -> None:
    if op not in OPS:
        raise CollectiveError("op", f"{op!r} is not known; take one of {', '.join(OPS)}")
    if n_nodes < 1:
        raise CollectiveError("nodes", f"{n_nodes} is too few; take at least 1")
    if n_bytes < 1:
        raise CollectiveError("bytes", f"{n_bytes} is too few; take at least 1")
    most = n_nodes * instance.n_cores
    if n_ranks < 2 or n_ranks > most:
        raise CollectiveError(
            "ranks",
            f"{n_ranks} does not go on {n_nodes} x {instance.name}, which has "
            f"{instance.n_cores} cores each; take 2 to {most}",
        )
    if n_ranks % n_nodes:
        raise CollectiveError(
            "ranks", f"{n_ranks} does not divide by {n_nodes} nodes; take a multiple of {n_nodes}"
        )
