"""docs/reference: its pages are what docs/make_reference.py makes of the settings."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
specification = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
assert specification is not None and specification.loader is not None
make_reference = importlib.util.module_from_spec(specification)
specification.loader.exec_module(make_reference)


@pytest.mark.parametrize("program", ["webtext", "gpt2"])
def test_the_reference_is_current(program: str) -> None:
    made = make_reference.page(program, make_reference.parsers()[program])
    written = (DOCS / "reference" / f"{program}.md").read_text(encoding="utf-8")
    assert written == made, "a setting has changed: run `./uvw run docs/make_reference.py`, and commit what it writes"


def test_every_command_and_flag_is_there() -> None:
    pages = {program: make_reference.page(program, parser) for program, parser in make_reference.parsers().items()}
    for heading in ("## webtext clean", "| `--min-tokens N` | drop documents with fewer GPT-2 tokens (default: 128) |"):
        assert heading in pages["webtext"]
    assert "## gpt2 generate" in pages["gpt2"]
