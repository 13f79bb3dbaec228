"""The error of unusable input."""


class FieldError(ValueError):
    """Unusable input: ``field`` is what to change, ``message`` says how."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message

    def inside(self, place: str) -> "FieldError":
        """Return the same error for a field of a larger structure."""
        return FieldError(f"{place}.{self.field}", self.message)
