"""Values of records as people read them."""

from typing import Any


def figure(value: Any) -> str:
    """A value as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "(none)"
    return f"{value:,}" if isinstance(value, int) else str(value) or "(none)"
