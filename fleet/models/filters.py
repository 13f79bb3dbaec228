"""Lookups of the list filters that pages, API and commands share."""


def given(**lookups: object) -> dict[str, object]:
    """Leave out empty values: a filter field without a value selects everything."""
    return {name: value for name, value in lookups.items() if value}
