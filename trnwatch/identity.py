"""The identity of a training process: rank and node by its launcher, run by its settings."""

import hashlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from trnwatch.log import warn_once
from trnwatch.surroundings import instance_id

INVALID = re.compile(r"[^A-Za-z0-9._-]+")
INVALID_RUN = re.compile(r"[^A-Za-z0-9_-]+")
DIGITS = re.compile(r"\d+")
# Of names of runs and sessions; a longer one ends with so many hex digits of its digest.
MAX_NAME_CHARS, DIGEST_CHARS = 60, 8
TEXTS = ("team", "purpose", "model", "instance_type", "precision", "optimizer", "recompute")
SETTINGS = {"compiler_flags": 500, "compiler_version": 60, "sdk_version": 40}
NUMBERS = (
    *("n_nodes", "tp", "pp", "cp", "micro_batch", "seq_len", "global_batch", "layers"),
    "hidden",
)
TOKENS = ("tokens_per_epoch", "planned_tokens")
AMOUNTS = ("params", "usd_per_node_hour")
FLAGS = ("requires_preflight",)
RECOMPUTE = ("none", "selective", "full")
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
MAX_TEXT_CHARS = dict.fromkeys(("team", "instance_type", "optimizer"), 40)
MAX_TEXT_CHARS.update({"purpose": 200, "model": 60, "precision": 10})
# By launcher: rank, number of ranks, rank on the node, ranks on the node. DeepSpeed's sets the
# variables of torchrun but the last one, which it calls LOCAL_SIZE.
LAUNCHERS: tuple[tuple[str, ...], ...] = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"),
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
    rank: int = 0
    n_ranks: int = 1
    local_rank: int = 0
    n_local: int = 1

    @property
    def node_rank(self) -> int:
        return self.rank // self.n_local

    @property
    def n_nodes(self) -> int:
        return max(1, self.n_ranks // self.n_local)


@dataclass(frozen=True)
class Identity:
    """What a process sends with every report, the facts of its run (``about``), and labels.

    ``is_named`` is whether the job set the run's name; any other one is a guess.
    """

    run: str
    session: str
    worker: str
    node: str
    rank: int
    n_workers: int
    stage: Optional[int]
    group: str
    is_reporting: bool
    about: Mapping[str, object]
    labels: Mapping[str, str] = field(default_factory=dict)
    is_named: bool = True


def rank_place_of(env: Mapping[str, str]) -> RankPlace:
    """Return the rank set by torchrun, DeepSpeed, Open MPI or Slurm; without them a single one.

    A launcher that does not say how many ranks a node has is taken to start one on each.
    """
    for rank, n_ranks, local_rank, *n_local in LAUNCHERS:
        if rank in env and n_ranks in env:
            number, total = _whole(env[rank]), max(1, _whole(env[n_ranks]))
            n_per_node = total // max(1, _whole(env.get("SLURM_NNODES", "")) or total)
            counts = [_whole(env.get(name, "")) for name in n_local]
            place = RankPlace(
                number,
                total,
                _whole(env.get(local_rank, "")),
                next(filter(None, counts), n_per_node),
            )
            if place.local_rank >= place.n_local:
                warn_once(
                    f"{local_rank} is %d, but %d ranks of this node are known: set {n_local[0]}, "
                    "or nodes and their cost are counted wrong",
                    place.local_rank,
                    place.n_local,
                )
            return place
    # Lightning sets no rank for the processes that it starts on a node.
    return RankPlace(local_rank=_whole(env.get("LOCAL_RANK", "")))


def identity_of(
    env: Mapping[str, str],
    about: Optional[Mapping[str, object]] = None,
    suggested: Optional[Mapping[str, object]] = None,
) -> Identity:
    """Return the identity: by arguments, else by environment, else as suggested."""
    facts = _about(env, about or {}, suggested or {})
    place = rank_place_of(env)
    node = env.get("TRNWATCH_NODE") or node_name()
    all_ranks = env.get("TRNWATCH_WORKERS", "nodes") == "ranks"
    # By Neuron's order of ranks: those of one tensor-parallel group are adjacent, and a pipeline
    # stage is a block of ranks. A group holds the ranks that exchange the same gradients.
    tp, pp = (int(str(facts.get(name, 1))) for name in ("tp", "pp"))
    stage = None if pp == 1 else min(pp - 1, place.rank * pp // place.n_ranks)
    group = f"tp{place.rank % tp}" if all_ranks and tp > 1 else ""
    facts.setdefault("n_nodes", place.n_nodes)
    n_workers = place.n_ranks if all_ranks else place.n_nodes
    run = str(facts.pop("run", "") or env.get("SLURM_JOB_NAME") or "training")
    if len(run) > MAX_NAME_CHARS:
        warn_once(
            "the run's name %r has more than %d characters: it is reported as %s",
            *(run, MAX_NAME_CHARS, run_name(run)),
        )
    return Identity(
        run=run_name(run) or "training",
        session=shortened(INVALID.sub("-", str(facts.pop("session", "") or session_of(env)))),
        worker=f"{node}/{place.local_rank}" if all_ranks else node,
        node=node,
        rank=place.rank if all_ranks else place.node_rank,
        n_workers=n_workers,
        stage=stage,
        group=group,
        is_reporting=all_ranks or place.local_rank == 0,
        about=dict(facts, n_workers=n_workers),
        is_named=bool((about or {}).get("run") or env.get("TRNWATCH_RUN")),
    )


def run_name(text: str) -> str:
    """Return the name of a run as it is stored; empty for a text without letters and digits.

    >>> run_name("llama-3.1 8b")
    'llama-3-1-8b'
    """
    name = INVALID_RUN.sub("-", text)
    return shortened(name) if name.strip("_-") else ""


def shortened(name: str, most: int = MAX_NAME_CHARS) -> str:
    """Return a name of at most so many characters; long names that differ stay different.

    >>> shortened("sweep-seed-1", 12), shortened("sweep-seed-10", 12)
    ('sweep-seed-1', 'swe-75c0795c')
    """
    if len(name) <= most:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST_CHARS]
    return f"{name[: most - DIGEST_CHARS - 1]}-{digest}"


def node_name() -> str:
    """Return the node's name, the same as the agent's: the EC2 instance id, else the host name."""
    name = instance_id() or socket.gethostname().partition(".")[0]
    return INVALID.sub("-", name).lstrip("._-")[:80] or "unknown"


def session_of(env: Mapping[str, str]) -> str:
    """Return the launcher's id of the job, the same for all its processes, or "auto".

    The server distinguishes the starts within it by their processes.
    """
    if env.get("TRNWATCH_SESSION"):
        return env["TRNWATCH_SESSION"]
    # torchrun's agents each count restarts of their own, and count none when nodes join or leave.
    elastic = env.get("TORCHELASTIC_RUN_ID", "none")
    if elastic != "none":
        return f"{elastic}.0"
    for job, restarts in (("SLURM_JOB_ID", "SLURM_RESTART_COUNT"), ("PMIX_NAMESPACE", "")):
        if env.get(job):
            # A script may start its training again; what runs on a part of its nodes is none.
            spans_job = env.get("SLURM_STEP_NUM_NODES") == env.get("SLURM_JOB_NUM_NODES")
            step = env.get("SLURM_STEP_ID", "0") if spans_job else "0"
            return f"{env[job]}.{env.get(restarts) or '0'}" + (f".{step}" if step != "0" else "")
    return "auto"


def _about(
    env: Mapping[str, str], given: Mapping[str, object], suggested: Mapping[str, object]
) -> dict[str, object]:
    """Return the known facts of the run; invalid settings are left out, and logged."""
    facts: dict[str, object] = {}
    for name in ("run", "session", *TEXTS, *SETTINGS, *NUMBERS, *TOKENS, *AMOUNTS, *FLAGS):
        setting, value = name, given.get(name)
        if value is None:
            setting, value = f"TRNWATCH_{name.upper()}", env.get(f"TRNWATCH_{name.upper()}")
        is_set = value is not None and value != ""
        if not is_set:
            value = suggested.get(name)
        fit = None if value is None else _validated(name, value)
        if fit is not None:
            facts[name] = fit
        elif is_set:
            warn_once(f"{setting}: %r is left out. Give {_rule_of(name)}", value)
    return facts


def _validated(name: str, value: object) -> Optional[object]:
    """Return a fact as the server accepts it; None if it is invalid."""
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
    if name == "recompute":
        return value if value in RECOMPUTE else None
    return str(value)[: {**MAX_TEXT_CHARS, **SETTINGS}.get(name)] or None


def _rule_of(name: str) -> str:
    """Return what the value of a fact must be, for those that can be invalid."""
    if name in FLAGS:
        return "1 or 0"
    if name == "recompute":
        return "none, selective or full"
    return "a number, 0 or above" if name in AMOUNTS else "a whole number above 0"


def _whole(text: str) -> int:
    """Return the integer at the start of a text (Slurm writes "32(x4)"), 0 without one."""
    digits = DIGITS.match(text.strip())
    return int(digits[0]) if digits else 0


def token_of(env: Mapping[str, str]) -> str:
    """Return the token from TRNWATCH_TOKEN or TRNWATCH_TOKEN_FILE; empty without one."""
    if env.get("TRNWATCH_TOKEN"):
        return env["TRNWATCH_TOKEN"].strip()
    path = env.get("TRNWATCH_TOKEN_FILE", "")
    try:
        return Path(path).read_text(encoding="utf-8").strip() if path else ""
    except (OSError, ValueError):
        return ""


def environment() -> Mapping[str, str]:
    """Return the current environment; a forked child may have changed it."""
    return dict(os.environ)
