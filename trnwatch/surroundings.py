"""Labels of a node and a job: what the environment and the instance's metadata say of them."""

import http.client
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from trnwatch.log import warn_once

# Variables of each label; the first one that is set is used.
VARIABLES = {
    "pod": ("TRNWATCH_POD", "POD_NAME"),
    "namespace": ("TRNWATCH_NAMESPACE", "POD_NAMESPACE"),
    "kubernetes_node": ("TRNWATCH_KUBERNETES_NODE", "NODE_NAME"),
    "node_group": ("TRNWATCH_NODE_GROUP",),
    "node_pool": ("TRNWATCH_NODE_POOL",),
    "zone": ("TRNWATCH_ZONE",),
    "placement_group": ("TRNWATCH_PLACEMENT_GROUP",),
    "slurm_job_id": ("SLURM_JOB_ID",),
    "slurm_array_job_id": ("SLURM_ARRAY_JOB_ID",),
    "slurm_array_task_id": ("SLURM_ARRAY_TASK_ID",),
    "slurm_partition": ("SLURM_JOB_PARTITION",),
}
# The nodes of one job differ in these.
OF_NODES = ("pod", "kubernetes_node", "node_group", "node_pool", "zone", "placement_group")
# EC2 instances have their id here, also in containers.
ASSET_TAG = Path("/sys/devices/virtual/dmi/id/board_asset_tag")
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
MAX_CHARS, MAX_LABELS = 128, 24

IMDS = "169.254.169.254"
IMDS_WITHIN_S = 1.0
# Below latest/meta-data/; not every instance has a placement group.
METADATA = {"zone": "placement/availability-zone", "placement_group": "placement/group-name"}
# A token lasts for the few requests that follow.
TOKEN_TTL = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}


def instance_id(asset_tag: Path = ASSET_TAG) -> str:
    """Return the id of the EC2 instance; empty on other machines."""
    try:
        tag = asset_tag.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    return tag if tag.startswith("i-") else ""


def environment_labels(
    env: Mapping[str, str], *, namespace_file: "Path | None" = None
) -> "dict[str, str]":
    """Return the labels that the environment gives; invalid ones are left out, and logged."""
    labels = {
        name: value
        for name, variables in VARIABLES.items()
        if (value := next((env[variable] for variable in variables if env.get(variable)), ""))
    }
    if "namespace" not in labels and namespace_file is not None:
        with suppress(OSError, ValueError):
            labels["namespace"] = namespace_file.read_text(encoding="utf-8")
    left_out = []
    for pair in env.get("TRNWATCH_LABELS", "").split(","):
        name, sign, value = pair.partition("=")
        labels[name.strip()] = value
        if pair.strip() and not (sign and NAME.fullmatch(name.strip())):
            left_out.append(pair.strip())
    if left_out:
        warn_once(
            "TRNWATCH_LABELS: %s is left out. Give name=value, with a name of letters, digits and "
            "underscores",
            ", ".join(left_out),
        )
    return dict([*_valid(labels)][:MAX_LABELS])


def _valid(labels: Mapping[str, str]) -> "Iterator[tuple[str, str]]":
    for name, value in labels.items():
        text = CONTROL.sub(" ", value).strip()[:MAX_CHARS]
        if NAME.fullmatch(name) and text:
            yield name, text


def metadata_labels(
    *, host: str = IMDS, within_s: float = IMDS_WITHIN_S, asset_tag: Path = ASSET_TAG
) -> "dict[str, str]":
    """Return the labels that IMDSv2 gives an EC2 instance; none where it does not answer.

    It may take ``within_s`` per request, so call it in the background.
    """
    if not instance_id(asset_tag):
        return {}
    labels = {}
    connection = http.client.HTTPConnection(host, timeout=within_s)
    try:
        token = _read(connection, "PUT", "/latest/api/token", TOKEN_TTL)
        for name, path in METADATA.items() if token else ():
            headers = {"X-aws-ec2-metadata-token": token}
            labels[name] = _read(connection, "GET", f"/latest/meta-data/{path}", headers)
    except (OSError, http.client.HTTPException, ValueError):
        pass
    finally:
        connection.close()
    return dict(_valid(labels))


def _read(
    connection: http.client.HTTPConnection, method: str, path: str, headers: Mapping[str, str]
) -> str:
    connection.request(method, path, headers=dict(headers))
    response = connection.getresponse()
    body = response.read(4096).decode("utf-8")
    return body if response.status == 200 else ""
