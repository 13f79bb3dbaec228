"""Chips, instance types, prices and model shapes, each figure with its source.

They are read from TOML. An entry without a source, or with a wrong type, is refused.
"""

import datetime
import tomllib
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from telemetry.errors import FieldError

Table = dict[str, Any]
T = TypeVar("T")
UNSOURCED = frozenset({"vendor", "chip", "can_train", "has_step_model"})
# A price older than this is marked: AWS changes those of capacity blocks several times a year.
OLD_PRICE_DAYS = 90
Count = Annotated[int, msgspec.Meta(ge=1)]
Amount = Annotated[float, msgspec.Meta(gt=0)]


def unknown(field: str, value: str, known: Collection[str]) -> FieldError:
    """FieldError for an unknown name; proposes similar names."""
    close = get_close_matches(value.lower(), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    names = ", ".join(sorted(known))
    return FieldError(field, f"{value!r} is not known; {hint}known are {names}")


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where and when a figure was read (ISO date, or year and month)."""

    title: str
    date: str


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The price of an hour and its terms; ``usd_per_hour_high`` where a range is published.

    ``region`` lists several that have the same price; "any" where the source names none.
    """

    usd_per_hour: Amount
    basis: str
    region: str
    source: Source
    usd_per_hour_high: float | None = None

    @property
    def date(self) -> str:
        return self.source.date

    @property
    def regions(self) -> tuple[str, ...]:
        return tuple(self.region.split(", "))


def age_note(date: str, today: datetime.date) -> str:
    """Mark the ISO date of an old price; empty for a recent one. A month means its first day.

    >>> age_note("2026-05", datetime.date(2026, 11, 23))
    'as of 2026-05, 206 days old'
    """
    begun = datetime.date.fromisoformat(date if date.count("-") == 2 else f"{date}-01")
    days = (today - begun).days
    return f"as of {date}, {days:,} days old" if days > OLD_PRICE_DAYS else ""


class Chip(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One accelerator. ``peak_flops`` is dense FLOPs per second by precision.

    A logical core is what the runtime counts: two physical ones on trn2. A GPU is one core.
    ``sources`` says for each figure where it comes from.
    """

    name: str
    vendor: str
    cores_physical: Count
    cores_logical: Count
    hbm_bytes: Count
    hbm_bytes_per_s: Amount
    peak_flops: Mapping[str, Amount]
    sources: Mapping[str, Source]


class Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One instance type.

    ``network_bytes_per_s`` is the line rate of all its network devices together, one way;
    ``network_baseline_bytes_per_s`` what it may use for long where that is less.
    ``link_bytes_per_s`` is NeuronLink or NVLink per chip, both ways together.
    ``has_step_model`` is false where no published run allows an estimate.
    """

    name: str
    chip: Chip
    can_train: bool
    has_step_model: bool = True
    n_devices: Count
    vcpus: Count
    host_memory_bytes: Count
    n_efa: Annotated[int, msgspec.Meta(ge=0)]
    network_bytes_per_s: Amount
    network_baseline_bytes_per_s: float | None = None
    link_bytes_per_s: Amount
    prices: tuple[Price, ...] = ()
    sources: Mapping[str, Source]

    @property
    def n_cores(self) -> int:
        """Cores as the runtime counts them: each runs one worker process (rank)."""
        return self.n_devices * self.chip.cores_logical

    @property
    def hbm_bytes(self) -> int:
        return self.n_devices * self.chip.hbm_bytes

    @property
    def hbm_bytes_per_s(self) -> float:
        return self.n_devices * self.chip.hbm_bytes_per_s

    @property
    def has_efa(self) -> bool:
        """Whether nodes communicate over EFA; otherwise over TCP."""
        return self.n_efa > 0

    @property
    def price(self) -> Price:
        """The default price; FieldError if none is published."""
        if not self.prices:
            raise FieldError("instance", f"{self.name!r} has no published price; state your own")
        return self.prices[0]

    def peak_flops(self, precision: str) -> float:
        """Dense FLOPs per second of the whole node; KeyError if the precision is unknown."""
        return self.n_devices * self.chip.peak_flops[precision]


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A transformer by its dimensions; ``seq_len`` is the length it was made for.

    ``kind`` decides whether attention is causal. Sources and dates are those of the shape.
    """

    name: str
    kind: Literal["decoder", "encoder", "vision"] = "decoder"
    params: Annotated[float, msgspec.Meta(gt=0)]
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    ffn: Count
    vocab: Count
    seq_len: Count = 2048
    compile_s: Annotated[float, msgspec.Meta(ge=0)] = 1500.0
    source: str
    date: str

    @property
    def default_compile_s(self) -> float:
        """Seconds of a first compile, without a cache."""
        return self.compile_s

    @property
    def head_params(self) -> int:
        """Parameters of the output projection: vocabulary (or classes) by hidden size."""
        return self.vocab * self.hidden

    @property
    def is_causal(self) -> bool:
        """Whether a token attends only to earlier ones."""
        return self.kind == "decoder"

    def flops_per_token(self, seq_len: int, *, causal: bool = False) -> float:
        """Return the FLOPs that training on one token takes, nothing computed twice.

        Parameters
        ----------
        seq_len : tokens per sequence
            Attention's share grows with it.
        causal
            Count only the attention that a causal mask leaves: half. Nothing changes for models
            without such a mask.

        Returns
        -------
        flops
            ``6 · params + 12 · layers · hidden · seq_len``: two per weight forwards and four
            backwards, and the same for the two attention products. They are counted in full
            unless ``causal``: the convention of published MFU.

        References
        ----------
        A. Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways",
        arXiv:2204.02311, appendix B.

        >>> tiny = Model(name="tiny", params=1e6, layers=2, hidden=64, heads=2, kv_heads=2,
        ...              ffn=256, vocab=100, source="none", date="2026")
        >>> tiny.flops_per_token(128)
        6196608.0
        """
        seen = seq_len / 2 if causal and self.is_causal else seq_len
        return 6 * self.params + 12 * self.layers * self.hidden * seen


class Catalog(msgspec.Struct, frozen=True):
    chips: Mapping[str, Chip]
    instances: Mapping[str, Instance]
    models: Mapping[str, Model]


@cache
def catalog() -> Catalog:
    return read_catalog(Path(__file__).parent)


def instances() -> Mapping[str, Instance]:
    return catalog().instances


def models() -> Mapping[str, Model]:
    return catalog().models


def instance(name: str) -> Instance:
    if name not in instances():
        raise unknown("instance", name, instances())
    return instances()[name]


def model(name: str) -> Model:
    if name not in models():
        raise unknown("model", name, models())
    return models()[name]


def training_instance(name: str) -> Instance:
    """Return an instance type that the step model knows.

    FieldError if it is for inference only, or if no run on its chip is published.
    """
    named = instance(name)
    if named.can_train and named.has_step_model:
        return named
    able = ", ".join(
        n
        for n, i in instances().items()
        if i.can_train and i.has_step_model and i.chip.vendor == named.chip.vendor
    )
    why = (
        f"can't be estimated or simulated: no run on {named.chip.name} is published"
        if named.can_train
        else "is made for inference only and can't train"
    )
    raise FieldError("instance", f"{name!r} {why}; use one of {able}")


def read_catalog(folder: Path) -> Catalog:
    """Read the four files of a catalogue; FieldError where they are inconsistent."""
    sources = {
        name: _typed(Source, entry, f"sources.toml {name}")
        for name, entry in _table(folder / "sources.toml").items()
    }
    chips: dict[str, Chip] = {}
    for name, entry in _table(folder / "chips.toml").items():
        where = f"chips.toml {name}"
        peaks, peak_sources = _figures(entry.pop("peak_flops", {}), sources, f"{where}.peak_flops")
        values, of = _figures(entry, sources, where)
        of |= {f"peak_flops.{precision}": source for precision, source in peak_sources.items()}
        values |= {"name": name, "peak_flops": peaks, "sources": of}
        chips[name] = _typed(Chip, values, where)
    instances: dict[str, Instance] = {}
    for name, entry in _table(folder / "instances.toml").items():
        where = f"instances.toml {name}"
        prices = tuple(
            _typed(Price, {**price, "source": _source(price, sources, f"{where}.prices")}, where)
            for price in entry.pop("prices", [])
        )
        values, of = _figures(entry, sources, where)
        chip = str(values.get("chip"))
        if chip not in chips:
            raise unknown(f"{where}.chip", chip, chips)
        values |= {"name": name, "chip": chips[chip], "prices": prices, "sources": of}
        instances[name] = _typed(Instance, values, where)
    models = {
        name: _typed(Model, {"name": name, **entry}, f"models.toml {name}")
        for name, entry in _table(folder / "models.toml").items()
    }
    return Catalog(chips, instances, models)


def _table(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise FieldError(path.name, f"the file can't be read as TOML: {error}") from error


def _figures(
    entry: Table, sources: Mapping[str, Source], where: str
) -> tuple[Table, dict[str, Source]]:
    """Split ``{ value, source }`` entries into the values and their sources."""
    values = {key: entry[key] for key in entry if key in UNSOURCED}
    of = {}
    for key, figure in entry.items():
        if key in UNSOURCED:
            continue
        if not isinstance(figure, dict) or figure.keys() != {"value", "source"}:
            raise FieldError(f"{where}.{key}", f"{figure!r} must be {{ value = …, source = … }}")
        values[key] = figure["value"]
        of[key] = _source(figure, sources, f"{where}.{key}")
    return values, of


def _source(figure: Table, sources: Mapping[str, Source], where: str) -> Source:
    name = str(figure.get("source"))
    if name not in sources:
        raise unknown(f"{where}.source", name, sources)
    return sources[name]


def _typed(kind: type[T], values: Table, where: str) -> T:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise FieldError(where, f"{values.get('name', 'entry')!r} is wrong: {error}") from error
