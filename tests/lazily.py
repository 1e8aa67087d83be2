"""Libraries that take seconds to import: each process of the tests collects all of them, and runs some."""

from __future__ import annotations

import importlib
from typing import Any


class Lazily:
    """A module that is imported when something of it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks every name of a module what it is
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
