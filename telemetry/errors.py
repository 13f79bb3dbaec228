"""What is said of input that cannot be used."""


class FieldError(ValueError):
    """Input that cannot be used; ``field`` names what to change, ``message`` says how."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message

    def inside(self, place: str) -> "FieldError":
        """Return the same error for a field inside a larger whole."""
        return FieldError(f"{place}.{self.field}", self.message)
