"""What goes wrong when a file of operators is read."""

LONGEST_QUOTE = 60


class SupportError(ValueError):
    """A file that cannot be read as operators: says the line, where there is one, and the remedy.

    ``line`` counts from 1; 0 means the whole file.
    """

    def __init__(self, message: str, *, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.line = line


def quoted(text: str) -> str:
    """Show what was found, shortened and printable."""
    shown = "".join(char if char.isprintable() else "\u00b7" for char in text.strip())
    cut = shown if len(shown) <= LONGEST_QUOTE else f"{shown[:LONGEST_QUOTE]}\u2026"
    return f"\u201c{cut}\u201d"
