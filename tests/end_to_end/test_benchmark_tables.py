"""Each table of `benchmarks/data.py` can be made: what it calls may have changed since it was last measured."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
OURS = ("webtext", "indexed_tokens", "command_kit", "gpt2_train", "data_tables", "measuring", "page_server")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(path.stem for path in (BENCHMARKS / "data_tables").glob("[a-z]*.py")))
def test_a_table_is_made_of_small_inputs(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    peers = importlib.import_module("peers")
    monkeypatch.setattr(peers, "datatrove_seconds", lambda _, parts: ("", dict.fromkeys(parts, 1.0)))
    try:
        table = importlib.import_module(f"data_tables.{name}")
    except ModuleNotFoundError as error:
        if str(error.name).startswith(OURS):
            raise
        pytest.skip(f"{error.name} is a peer: ./uvw sync --group dev --group peers")
    rows = list(table.rows(True, tmp_path))
    assert [row for row in rows if row.what.startswith("ours") and row.rate]
