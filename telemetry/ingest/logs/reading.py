"""A training log read from beginning to end: each line to the reader that knows its kind."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from telemetry.ingest.logs import compiler, hugging_face, kernel, lightning, megatron, neuronx
from telemetry.ingest.logs.compiler import Compiler
from telemetry.ingest.logs.figures import HIGHEST_STEP
from telemetry.ingest.logs.gathering import Gathered
from telemetry.ingest.logs.hugging_face import HuggingFace
from telemetry.ingest.logs.lightning import Lightning
from telemetry.ingest.logs.marks import is_known_kind, may_matter
from telemetry.ingest.logs.prefixes import prefix_of
from telemetry.ingest.logs.records import Compile, Entry, HardwareError, Said, Totals
from telemetry.ingest.logs.text import lines_of, opened, pieces_of

# Tables are no logs, but become runs as these do.
TABLE = "table"
FAMILIES = (neuronx.NAME, megatron.NAME, lightning.NAME, hugging_face.NAME, TABLE)
MOST_EXAMPLES = 5
LONGEST_EXAMPLE = 120
MOST_COMPILES = 200_000
MOST_ERRORS = 1_000


@dataclass(frozen=True, slots=True)
class About:
    """What people say of a log: its year where lines have none, its zone, its rhythm."""

    year: int = 1970
    utc_offset_s: float = 0.0
    log_every: int = 1


@dataclass(frozen=True, slots=True)
class Example:
    """A line that was not understood, and where it stands."""

    file: str
    number: int
    text: str


@dataclass(slots=True)
class Log:
    """What was read; ``understood`` counts lines by kind, ``damaged`` those half understood."""

    gathered: dict[str, Gathered] = field(
        default_factory=lambda: {name: Gathered() for name in FAMILIES}
    )
    compiles: list[Compile] = field(default_factory=list)
    errors: dict[HardwareError, int] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    understood: Counter[str] = field(default_factory=Counter)
    optimizer: str = ""
    n_lines: int = 0
    n_other: int = 0
    n_damaged: int = 0
    n_left_out: int = 0
    n_counted: int = 0
    others: list[Example] = field(default_factory=list)
    damaged: list[Example] = field(default_factory=list)

    @property
    def family(self) -> str:
        """The family of lines that tells of most steps; empty where none does."""
        best = max(FAMILIES, key=lambda name: len(self.gathered[name]))
        return best if len(self.gathered[best]) else ""

    @property
    def n_guessed(self) -> int:
        """How many steps have their number by counting, since the log has none."""
        return self.n_counted if self.family == hugging_face.NAME else 0

    @property
    def steps(self) -> Gathered:
        """The steps of that family."""
        return self.gathered[self.family or FAMILIES[0]]


class Reading:
    """Reads logs line by line; what it keeps grows with steps and graphs, not with lines."""

    def __init__(self, about: About) -> None:
        self.log = Log()
        self._about = about
        self._lightning = Lightning()
        self._trainer = HuggingFace(every=about.log_every)
        self._compiler = Compiler()

    def read(self, lines: Iterable[tuple[int, bytes, bool]], *, file: str = "") -> None:
        """Read the lines of one file: number, bytes and whether they are whole."""
        for number, line, is_whole in lines:
            self.log.n_lines += 1
            is_read = may_matter(line) and self._line(number, line, file)
            if not is_whole or (not is_read and is_known_kind(line)):
                self.log.n_damaged += 1
                self._note(self.log.damaged, number, line, file)
            elif not is_read and not line.isspace():
                self.log.n_other += 1
                self._note(self.log.others, number, line, file)

    def finish(self) -> Log:
        """Return what was read."""
        for event in self._compiler.rest():
            self._keep(event)
        self.log.totals = self._trainer.totals
        self.log.n_counted = self._trainer.n_counted
        return self.log

    def _line(self, number: int, line: bytes, file: str) -> bool:
        """Read each state that a line was in; return whether any was understood."""
        n_read = sum(self._piece(number, piece, file) for piece in pieces_of(line))
        return n_read > 0

    def _note(self, examples: list[Example], number: int, line: bytes, file: str) -> None:
        if len(examples) < MOST_EXAMPLES:
            shown = " ".join(next(pieces_of(line[: 4 * LONGEST_EXAMPLE]), "").split())
            printable = "".join(c for c in shown if c.isprintable())
            examples.append(Example(file, number, printable[:LONGEST_EXAMPLE]))

    def _piece(self, number: int, piece: str, file: str) -> bool:
        prefix = prefix_of(piece, year=self._about.year, utc_offset_s=self._about.utc_offset_s)
        entry = Entry(number, piece[prefix.end :], prefix.at_s, file + prefix.source, prefix.rank)
        kind = self._kind(entry)
        if kind:
            self.log.understood[kind] += 1
        return bool(kind)

    def _kind(self, entry: Entry) -> str:
        """Hand an entry to the reader that knows it, and return whose it was; empty: nobody's."""
        text = entry.text
        if "NEURON_HW_ERR=" in text:
            return kernel.NAME if self._error(entry) else ""
        if "||" in text or "Compiler status " in text:
            ended = self._compiler.read(entry)
            for event in ended or ():
                self._keep(event)
            return compiler.NAME if ended is not None else ""
        if "elapsed time per iteration" in text:
            return self._step(megatron.NAME, megatron.read_megatron(entry))
        if optimizer := megatron.optimizer_of(text):
            self.log.optimizer = optimizer
            return "arguments"
        if "step_loss" in text or ("step_time" in text and "seq/s" in text):
            return self._step(neuronx.NAME, neuronx.read_neuronx(entry))
        return self._bar_or_dictionary(entry)

    def _bar_or_dictionary(self, entry: Entry) -> str:
        if said := self._lightning.read(entry):
            return self._step(lightning.NAME, said)
        told = self._trainer.read(entry)
        if isinstance(told, Totals):
            self._trainer.totals = _merged(self._trainer.totals, told)
            return hugging_face.NAME
        if isinstance(told, Said):
            return self._step(hugging_face.NAME, told)
        return "progress" if told else ""

    def _step(self, family: str, said: Said | None) -> str:
        if said is None or said.step > HIGHEST_STEP:
            return ""
        self.log.gathered[family].add(said)
        return family

    def _keep(self, event: Compile) -> None:
        if len(self.log.compiles) < MOST_COMPILES:
            self.log.compiles.append(event)
        else:
            self.log.n_left_out += 1

    def _error(self, entry: Entry) -> bool:
        error = kernel.read_kernel(entry)
        if error is None:
            return False
        if error in self.log.errors or len(self.log.errors) < MOST_ERRORS:
            self.log.errors[error] = self.log.errors.get(error, 0) + 1
        else:
            self.log.n_left_out += 1
        return True


def read_logs(paths: Sequence[Path], about: About) -> Log:
    """Read the files of one run as one log."""
    reading = Reading(about)
    for path in paths:
        with opened(path) as file:
            reading.read(lines_of(file), file=path.name)
    return reading.finish()


def _merged(old: Totals, new: Totals) -> Totals:
    """Lay newer totals over older ones, where they say something."""
    told = {
        name: value for name in Totals.__slots__ if not math.isnan(value := getattr(new, name))
    }
    return replace(old, **told)
