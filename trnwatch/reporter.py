"""The reporter that a training loop uses; it never blocks or fails training."""

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Callable, Optional, Union

from trnwatch.compiles import CompileLines, attach_log_handler, compile_record, toolchain
from trnwatch.gradient_hooks import GradientHooks, sample_every
from trnwatch.identity import Identity, environment, identity_of, token_of
from trnwatch.log import warn_once
from trnwatch.nccl_inspector import inspector_trace
from trnwatch.runtime_trace import RuntimeTrace
from trnwatch.sender import ReportSender
from trnwatch.step_finder import StepFinder
from trnwatch.steps import Collectives, NoOpStep, Step, TimedPart
from trnwatch.surroundings import NAMESPACE_FILE, environment_labels, metadata_labels

FINISH_TIMEOUT_S, MAX_FINISH_S = 2.0, 600.0
_reporters: "weakref.WeakSet[Reporter]" = weakref.WeakSet()


class Reporter:
    """Reports the steps of one training process in the background.

    No method waits for the server or raises. Unsent reports are queued; when the queue is full
    the oldest are dropped and counted. A forked process, and one that trains again after its end,
    starts its own reporting with its first step.
    """

    def __init__(
        self,
        server: str = "",
        *,
        token: Union[str, Callable[[], str]] = "",
        ca_file: str = "",
        env: Optional[Mapping[str, str]] = None,
        finds_steps: bool = False,
        **about: Any,
    ) -> None:
        """Report to ``server``; without one, do nothing. ``about`` are facts of the run.

        ``ca_file`` (PEM) replaces the system's certificate authorities for https.
        ``finds_steps`` takes steps from the Neuron runtime's trace, for a script that reports
        none.
        """
        self._finds_steps = finds_steps
        self._server = server
        self._ca_file = ca_file
        self._token = token if callable(token) else lambda: token
        self._env = env
        self._about = about
        self._suggested: dict[str, Any] = {}
        self._metadata: dict[str, str] = {}
        self._sender: Optional[ReportSender] = None
        self._step: Union[Step, NoOpStep, None] = None
        self._next = 1
        # The number that the script gave first, and what is added to those it gives.
        self._first: Optional[int] = None
        self._shift = 0
        self._pid = os.getpid()
        self._is_over = False
        self._lines = CompileLines()
        self.hooked_activity = ""
        self._finish_within_s = FINISH_TIMEOUT_S
        self._hooks: Optional[GradientHooks] = None
        self.identity: Optional[Identity] = None
        try:
            self._begin()
        except Exception as error:
            warn_once("cannot report: %s", error)
        _reporters.add(self)

    @classmethod
    def from_env(cls, **about: Any) -> "Reporter":
        """Set up a reporter from TRNWATCH_ variables; without TRNWATCH_SERVER it does nothing."""
        env = environment()
        server = about.pop("server", None) or env.get("TRNWATCH_SERVER", "")
        ca_file = about.pop("ca_file", None) or env.get("TRNWATCH_CA_FILE", "")
        return cls(server, token=lambda: token_of(environment()), ca_file=ca_file, **about)

    def _begin(self) -> None:
        """Determine the identity; start the sender if this process is one that reports."""
        if not self._server:
            return
        self.identity = self._read_identity()
        if self.identity.is_reporting:
            self._sender = ReportSender(
                self._server,
                self._token,
                self.identity,
                ca_file=self._ca_file,
                trace=self._trace(),
                finder=StepFinder() if self._finds_steps else None,
                activity=lambda: self.activity,
            )
            self._sender.start()
            attach_log_handler(self)
            env = environment() if self._env is None else self._env
            if env.get("TRNWATCH_IMDS", "").strip() != "0":
                threading.Thread(target=self._read_metadata, daemon=True).start()
            self._finish_within_s = _seconds(env.get("TRNWATCH_FINISH_S", ""))
            if every := sample_every(env.get("TRNWATCH_COLLECTIVE_EVERY", "")):
                self._hooks = GradientHooks(lambda: self._step, every)

    def _trace(self) -> Optional[RuntimeTrace]:
        """Return the trace that the job asks for: of the Neuron runtime, or of NCCL."""
        env = environment() if self._env is None else self._env
        mode = "1" if self._finds_steps else env.get("TRNWATCH_RUNTIME_TRACE", "").strip()
        if mode not in {"1", "request"}:
            if mode not in {"", "0"}:
                warn_once("TRNWATCH_RUNTIME_TRACE: %r is not 0, 1 or request", mode)
            return None
        on_request = mode == "request"
        if env.get("NCCL_INSPECTOR_ENABLE", "").strip() == "1":
            return inspector_trace(env, on_request=on_request)
        return RuntimeTrace(on_request=on_request)

    @property
    def is_reporting(self) -> bool:
        return self._sender is not None and not self._is_over

    @property
    def activity(self) -> str:
        """What the process does now: step, input, checkpoint, other, compile; empty if unknown."""
        if self._is_over:
            return ""
        if self._lines.is_compiling:
            return "compile"
        step = self._step
        return self.hooked_activity or (step.activity if isinstance(step, Step) else "")

    def step(self, number: Optional[int] = None) -> "Union[Step, NoOpStep]":
        """Time one optimizer step; without ``number`` steps count from 1.

        A script that counts from 0 or 1 in each epoch numbers its steps on.
        """
        new: Union[Step, NoOpStep]
        if self._is_over or self._pid != os.getpid():
            self._restart()
        if number is not None:
            self._next = self._numbered_on(number)
        new = NoOpStep() if self._sender is None else Step(self._next, self._done)
        self._next += 1
        self._step = new
        if self._hooks is not None:
            self._hooks.install()
        return new

    def _numbered_on(self, number: int) -> int:
        if self._first is None:
            self._first = number
        elif number == self._first and number < 2 and number + self._shift < self._next:
            self._shift = self._next - number
            text = "step %d comes again, as of the next epoch: from now on %d is added to numbers"
            warn_once(text, number, self._shift)
        return number + self._shift

    def collective(self) -> "Union[Collectives, NoOpStep]":
        """Time a gradient exchange in the current step."""
        return NoOpStep() if self._step is None else self._step.collective()

    def input(self) -> "Union[TimedPart, NoOpStep]":
        return NoOpStep() if self._step is None else self._step.input()

    def checkpoint(self) -> "Union[TimedPart, NoOpStep]":
        return NoOpStep() if self._step is None else self._step.checkpoint()

    def other(self) -> "AbstractContextManager[Any]":
        """Time anything that is not training, such as an evaluation, in the current step."""
        return NoOpStep() if self._step is None else self._step.other()

    def compile(self, module: str = "", outcome: str = "miss", **facts: Any) -> None:
        """Report a compile: a ``miss`` compiled the graph, a ``hit`` found it cached, or ``fail``.

        ``facts`` are ``seconds``, ``at`` (Unix time of its start), ``compiler``, ``flags``,
        ``cache``, ``shape``, and ``planned=True`` if the job compiles on purpose.
        """
        try:
            if self._sender is not None and self._pid == os.getpid():
                self._sender.put(compile_record(module, outcome, facts, now_s=time.time()))
        except Exception as error:
            warn_once("a compile is not reported: %s", error)

    def compile_line(self, text: str, at: Optional[float] = None) -> None:
        """Read a log line of the compiler's wrapper and report the compiles it completes."""
        try:
            for compiled in self._lines.read(text, time.time() if at is None else at):
                self.compile(**compiled)
        except Exception as error:
            warn_once("a line of the compiler is not read: %s", error)

    def about(self, **facts: Any) -> None:
        """Set facts of the run that are known only after the start."""
        self._about.update({name: fact for name, fact in facts.items() if fact is not None})
        self._update_identity()

    def await_suggestions(self) -> None:
        """Report nothing before ``suggest``, a step or the end, unless the run's name is set.

        A run that began under another name would stay behind, and look as if it had died.
        """
        if self._sender is not None and self.identity is not None:
            self._sender.hold(is_held=not self.identity.is_named)

    def suggest(self, **facts: Any) -> None:
        """Set facts of the run that neither arguments nor environment set.

        A run that is reported already keeps its name; one that begins after its end has another.
        """
        if self._sender is not None and self._sender.has_begun and not self._is_over:
            facts.pop("run", None)
        self._suggested.update({name: fact for name, fact in facts.items() if fact})
        self._update_identity()
        if self._sender is not None:
            self._sender.hold(is_held=False)

    def _update_identity(self) -> None:
        try:
            if self._sender is not None:
                self.identity = self._read_identity()
                self._sender.update_identity(self.identity)
        except Exception as error:
            warn_once("cannot update the run's facts: %s", error)

    def _read_identity(self) -> Identity:
        env = environment() if self._env is None else self._env
        identity = identity_of(env, self._about, {**toolchain(env), **self._suggested})
        labels = environment_labels(env, namespace_file=NAMESPACE_FILE)
        return replace(identity, labels={**self._metadata, **labels})

    def _read_metadata(self) -> None:
        self._metadata = metadata_labels()
        if self._metadata:
            self._update_identity()

    def _done(self, step: Step, step_s: float) -> None:
        self.take(step, step_s, time.time())

    def take(self, step: Step, step_s: float, ended_at: float) -> None:
        """Queue a completed step; called by ``Step``."""
        try:
            if self._sender is not None:
                self._sender.put(step.record(step_s, ended_at))
                self._sender.hold(is_held=False)
        except Exception as error:
            warn_once("a step is not reported: %s", error)

    def finish(self, *, failed: bool = False, reason: str = "") -> None:
        """Report the end of training; waits up to TRNWATCH_FINISH_S (2) to send what is queued."""
        if self._is_over or self._pid != os.getpid():
            return
        self._is_over = True
        try:
            if self._sender is not None:
                self._sender.finish(
                    failed=failed, reason=reason[:200], within_s=self._finish_within_s
                )
        except Exception as error:
            warn_once("the end is not reported: %s", error)

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, kind: Optional[type], *exc: object) -> None:
        self.finish(failed=kind is not None, reason="" if kind is None else kind.__name__)

    def _restart(self) -> None:
        """Start again, in a forked process or after an end; the environment may be another."""
        self._pid, self._sender, self._step, self._is_over = os.getpid(), None, None, False
        self._first, self._shift = None, 0
        try:
            self._begin()
        except Exception as error:
            warn_once("cannot report: %s", error)


def _seconds(text: str) -> float:
    """Read TRNWATCH_FINISH_S; the default where it is empty or wrong."""
    try:
        seconds = float(text or FINISH_TIMEOUT_S)
    except ValueError:
        seconds = -1.0
    if 0.0 <= seconds <= MAX_FINISH_S:
        return seconds
    warn_once(f"TRNWATCH_FINISH_S: %r is not between 0 and {MAX_FINISH_S:.0f} seconds", text)
    return FINISH_TIMEOUT_S


def _at_exit() -> None:
    """Report the end of the process; an uncaught exception is a failure."""
    kind = getattr(sys, "last_type", None)
    for reporter in list(_reporters):
        reporter.finish(failed=kind is not None, reason=kind.__name__ if kind else "")


atexit.register(_at_exit)
