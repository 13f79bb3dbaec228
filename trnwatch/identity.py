"""Who a training process is: its rank and node by what launched it, its run by what people set."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

# Amazon's machines carry their instance id here: the agent on the node goes by the same name.
ASSET_TAG = Path("/sys/devices/virtual/dmi/id/board_asset_tag")
INVALID = re.compile(r"[^A-Za-z0-9._-]+")
INVALID_RUN = re.compile(r"[^A-Za-z0-9_-]+")
DIGITS = re.compile(r"\d+")
TEXTS = ("team", "purpose", "model", "instance_type", "precision", "optimizer")
SETTINGS = {"compiler_flags": 500, "compiler_version": 60, "sdk_version": 40}
NUMBERS = ("n_nodes", "tp", "pp", "seq_len", "global_batch", "layers", "hidden")
TOKENS = ("tokens_per_epoch", "planned_tokens")
AMOUNTS = ("params", "usd_per_node_hour")
FLAGS = ("requires_preflight",)
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
MAX_TEXT_CHARS = dict.fromkeys(("team", "instance_type", "optimizer"), 40)
MAX_TEXT_CHARS.update({"purpose": 200, "model": 60, "precision": 10})
# By launcher: rank, ranks in all, rank on the node, ranks on the node.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)


@dataclass(frozen=True)
class RankPlace:
    """Where a process stands among those of its job."""

    rank: int = 0
    n_ranks: int = 1
    local_rank: int = 0
    n_local: int = 1

    @property
    def node_rank(self) -> int:
        """Which of the job's nodes it runs on."""
        return self.rank // self.n_local

    @property
    def n_nodes(self) -> int:
        """How many nodes the job has."""
        return max(1, self.n_ranks // self.n_local)


@dataclass(frozen=True)
class Identity:
    """What a process says of itself with every report, and what its run is."""

    run: str
    session: str
    worker: str
    node: str
    rank: int
    n_workers: int
    stage: Optional[int]
    group: str
    speaks: bool
    about: Mapping[str, object]


def rank_place_of(env: Mapping[str, str]) -> RankPlace:
    """Return where the process stands, by torchrun, Open MPI or Slurm; alone if none of them."""
    for rank, n_ranks, local_rank, n_local in LAUNCHERS:
        if rank in env and n_ranks in env:
            number, total = _whole(env[rank]), max(1, _whole(env[n_ranks]))
            per_node = total // max(1, _whole(env.get("SLURM_NNODES", "")) or total)
            beside = _whole(env.get(n_local, "")) or per_node
            return RankPlace(number, total, _whole(env.get(local_rank, "")), beside)
    return RankPlace()


def identity_of(
    env: Mapping[str, str],
    about: Optional[Mapping[str, object]] = None,
    suggested: Optional[Mapping[str, object]] = None,
) -> Identity:
    """Return who this process is: by code, else by the environment, else as is suggested."""
    said = _about(env, about or {}, suggested or {})
    place = rank_place_of(env)
    node = env.get("TRNWATCH_NODE") or node_name()
    all_ranks = env.get("TRNWATCH_WORKERS", "nodes") == "ranks"
    stage, group = _stage_and_group(place, said, all_ranks=all_ranks)
    said.setdefault("n_nodes", place.n_nodes)
    n_workers = place.n_ranks if all_ranks else place.n_nodes
    return Identity(
        run=INVALID_RUN.sub("-", str(said.pop("run", "") or _default_run(env)))[:60],
        session=INVALID.sub("-", str(said.pop("session", "") or session_of(env)))[:60],
        worker=f"{node}/{place.local_rank}" if all_ranks else node,
        node=node,
        rank=place.rank if all_ranks else place.node_rank,
        n_workers=n_workers,
        stage=stage,
        group=group,
        speaks=all_ranks or place.local_rank == 0,
        about=dict(said, n_workers=n_workers),
    )


def node_name() -> str:
    """Return the node's name: the instance id where there is one, as the agent says it too."""
    try:
        tag = ASSET_TAG.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        tag = ""
    name = tag if tag.startswith("i-") else socket.gethostname().partition(".")[0]
    return INVALID.sub("-", name).lstrip("._-")[:80] or "unknown"


def session_of(env: Mapping[str, str]) -> str:
    """Return which start of the job this is, the same for all its processes.

    A launcher that gives no number leaves it to the server to tell starts apart.
    """
    given = env.get("TRNWATCH_SESSION", "")
    elastic = env.get("TORCHELASTIC_RUN_ID", "none")
    if given:
        return given
    if elastic != "none":
        return f"{elastic}.{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    for job, restarts in (("SLURM_JOB_ID", "SLURM_RESTART_COUNT"), ("PMIX_NAMESPACE", "")):
        if env.get(job):
            again = env.get("TORCHELASTIC_RESTART_COUNT") or env.get(restarts) or "0"
            return f"{env[job]}.{again}"
    return "auto"


def _default_run(env: Mapping[str, str]) -> str:
    return env.get("SLURM_JOB_NAME") or "training"


def _about(
    env: Mapping[str, str], given: Mapping[str, object], suggested: Mapping[str, object]
) -> dict[str, object]:
    """Return what is known of the run; a figure that is none is left out."""
    said: dict[str, object] = {}
    for name in ("run", "session", *TEXTS, *SETTINGS, *NUMBERS, *TOKENS, *AMOUNTS, *FLAGS):
        value = given.get(name)
        if value is None:
            value = env.get(f"TRNWATCH_{name.upper()}") or suggested.get(name)
        if value is not None:
            said[name] = value
    return {
        name: fit for name, value in said.items() if (fit := _validated(name, value)) is not None
    }


def _validated(name: str, value: object) -> Optional[object]:
    """Return a fact in the form that the server takes; None where it cannot be read."""
    if name in FLAGS:
        word = str(value).strip().lower()
        return True if word in YES else False if word in NO else None
    if name in (*NUMBERS, *TOKENS, *AMOUNTS):
        try:
            number = float(str(value))
        except ValueError:
            return None
        if name in AMOUNTS:
            return number if 0 <= number < 1e15 else None
        return int(number) if 0 < number < (1e18 if name in TOKENS else 1e12) else None
    return str(value)[: {**MAX_TEXT_CHARS, **SETTINGS}.get(name, 60)] or None


def _stage_and_group(
    place: RankPlace, said: Mapping[str, object], *, all_ranks: bool
) -> tuple[Optional[int], str]:
    """Return the pipeline stage and the data-parallel group, ranks laid out as Neuron's are.

    Tensor ranks are next to each other, pipeline stages hold whole blocks of ranks.
    """
    tp, pp = (int(str(said.get(name, 1))) for name in ("tp", "pp"))
    stage = None if pp == 1 else min(pp - 1, place.rank * pp // place.n_ranks)
    return stage, f"tp{place.rank % tp}" if all_ranks and tp > 1 else ""


def _whole(text: str) -> int:
    """Return the number that a text begins with (Slurm writes "32(x4)"), 0 if it has none."""
    found = DIGITS.match(text.strip())
    return int(found[0]) if found else 0


def token_of(env: Mapping[str, str]) -> str:
    """Return the token, from the environment or from the file that it names."""
    if env.get("TRNWATCH_TOKEN"):
        return env["TRNWATCH_TOKEN"].strip()
    path = env.get("TRNWATCH_TOKEN_FILE", "")
    try:
        return Path(path).read_text(encoding="utf-8").strip() if path else ""
    except (OSError, ValueError):
        return ""


def environment() -> Mapping[str, str]:
    """Return the process's environment as it is now: a child that was forked may have another."""
    return dict(os.environ)
