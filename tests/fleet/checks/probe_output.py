"""Probe output of real nodes, as files."""

from collections.abc import Mapping

HEAD = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
REST = '"rest_s": 30, "rest": {"rx_drops": 0, "retrans_pkts": %d}, "ecc_uncorrected": 0'


def pingpong(latency_us: float, *, rate_mb: float = 2300.0) -> bytes:
    """Write what fi_pingpong prints; the first row is set-up."""
    rows = [
        "64      10      =10      1.2k        0.01s      0.08     950.00       0.00",
        f"256     10      =10      5k          0.00s     15.00     {latency_us:.2f}       0.06",
        f"4k      10      =10      80k   0.00s     230.00     {latency_us + 1:.2f}       0.05",
        f"1m      10      =10      20m         0.01s   {rate_mb:.2f}     450.00       0.00",
    ]
    return (HEAD + "\n".join(rows) + "\n").encode()


def node(n_devices: int = 16, n_efa: int = 8, *, n_again: int = 0) -> bytes:
    """Write what a node counts."""
    return f'{{"n_devices": {n_devices}, "n_efa": {n_efa}, {REST % n_again}}}'.encode()


def collective(*, slower: float = 1.0) -> bytes:
    """Write what nccom-test prints over five trn1.32xlarge."""
    rows = [(1048576, 1500.0), (33554432, 3600.0), (1073741824, 60000.0)]
    head = "size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)\n"
    return (
        head + "".join(f"{size} {size // 4} fp32 {us * slower:.1f} 1.0 1.9\n" for size, us in rows)
    ).encode()


def group(**other: bytes) -> list[tuple[str, bytes]]:
    """Write the files of a healthy group of nodes a, b, c …; ``other`` replaces some by name."""
    names = "abcde"
    files: dict[str, bytes] = {f"node__{name}.json": node() for name in names}
    for i, one in enumerate(names):
        for j, another in enumerate(names[i + 1 :]):
            files[f"pair__{one}__{another}__1.txt"] = pingpong(17.0 + 0.1 * i + 0.07 * j)
        files |= {f"device__{one}__{k}.txt": pingpong(16 + 0.1 * k) for k in range(8)}
    return list((files | replaced(other)).items())


def replaced(other: Mapping[str, bytes]) -> dict[str, bytes]:
    """Turn keywords into file names: ``pair__a__b__1``, ``node__a``."""
    return {
        f"{name}.{'json' if name.startswith('node') else 'txt'}": data
        for name, data in other.items()
    }
