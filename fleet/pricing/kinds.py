"""Price kinds: on which terms a node-hour is paid, and what the catalogue lists for each kind."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from telemetry import catalog

# In the order in which they are told. "reserved" is a list that does not say for how long.
KINDS = (
    *("on demand", "1-year", "3-year", "reserved"),
    *("capacity block", "spot", "contract"),
)
# What a price's terms begin with, longer before shorter.
NAMES: Mapping[str, str] = {
    "on demand": "on demand",
    "on-demand": "on demand",
    "1-year": "1-year",
    "reserved 1-year": "1-year",
    "3-year": "3-year",
    "reserved 3-year": "3-year",
    "reserved": "reserved",
    "capacity block": "capacity block",
    "spot": "spot",
    "contract": "contract",
    "private contract": "contract",
}
NOT_STATED, THEN = "terms not stated", " then "


@dataclass(frozen=True, slots=True)
class ListPrice:
    """What the catalogue lists for a node-hour of one kind; a range where several were seen."""

    low_usd: float
    high_usd: float
    region: str
    date: str

    @property
    def usd(self) -> float:
        """The middle of the range."""
        return (self.low_usd + self.high_usd) / 2


@dataclass(frozen=True, slots=True)
class CommonKind:
    """A kind for which both arms have a list price, per node and hour."""

    kind: str
    baseline: ListPrice
    candidate: ListPrice


@dataclass(frozen=True, slots=True)
class PriceKinds:
    """On which terms two arms were paid, and for which kinds both have a list price.

    ``baseline`` and ``candidate`` are kinds; several, joined by "then", where an arm changed its
    kind on the way, and empty where no price or no known kind is stated.
    """

    baseline: str
    candidate: str
    common: tuple[CommonKind, ...]

    @property
    def is_alike(self) -> bool:
        """Whether both arms were paid by one and the same kind, as far as is known."""
        return self.baseline == self.candidate and THEN not in self.baseline

    @property
    def words(self) -> str:
        """Both kinds, the candidate's first: capacity block against on demand."""
        return f"{self.candidate or NOT_STATED} against {self.baseline or NOT_STATED}"


def kind_of(basis: str) -> str:
    """Return the kind that a price's terms begin with; empty where they name none.

    >>> kind_of("capacity block of retail vision, 2026-10-23"), kind_of("as reported")
    ('capacity block', '')
    """
    text = basis.casefold()
    found = (name for name in sorted(NAMES, key=len, reverse=True) if text.startswith(name))
    return NAMES.get(next(found, ""), "")


def list_prices(instance_type: str) -> dict[str, ListPrice]:
    """Return the newest list price of an instance type by kind, in the order of KINDS."""
    instance = catalog.instances().get(instance_type)
    prices = instance.prices if instance else ()
    found = {}
    for kind in KINDS:
        listed = [price for price in prices if kind_of(price.basis) == kind]
        if not listed:
            continue
        newest = max(price.date for price in listed)
        current = [price for price in listed if price.date == newest]
        found[kind] = ListPrice(
            min(price.usd_per_hour for price in current),
            max(price.usd_per_hour_high or price.usd_per_hour for price in current),
            ", ".join(dict.fromkeys(price.region for price in current)),
            newest,
        )
    return found


def price_kinds(
    baseline: str,
    candidate: str,
    *,
    baseline_bases: Collection[str],
    candidate_bases: Collection[str],
) -> PriceKinds:
    """Compare on which terms two arms are paid.

    Parameters
    ----------
    baseline, candidate : instance types
    baseline_bases, candidate_bases : terms of the prices that each arm was paid by, in order
    """
    of_baseline, of_candidate = list_prices(baseline), list_prices(candidate)
    return PriceKinds(
        _paid(baseline_bases),
        _paid(candidate_bases),
        tuple(
            CommonKind(kind, price, of_candidate[kind])
            for kind, price in of_baseline.items()
            if kind in of_candidate
        ),
    )


def _paid(bases: Collection[str]) -> str:
    kinds = list(dict.fromkeys(kind_of(basis) for basis in bases))
    return kinds[0] if len(kinds) == 1 else THEN.join(kind or NOT_STATED for kind in kinds)
