"""JSON that others wrote: what is wrong with it is always a ValueError."""

import re
from pathlib import Path

import pytest

from command_kit import parse_json

PACKAGES = Path(__file__).resolve().parents[2] / "packages"
OWN_MESSAGES = {
    "command.py", "errors.py", "lease.py", "lineage.py", "local_job.py", "runner.py", "why.py"
}  # fmt: skip
"""Files that read what this program, or a library, has written, or what comes with the package."""


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, b"[" * 100_000, "1" * 5000, "{", b"\xff", "", "[1,]"]
)
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    """Arrays nested 100,000 deep raised RecursionError, which nobody caught: an internal error."""
    with pytest.raises(ValueError):
        parse_json(text)


def test_what_is_json_is_its_value() -> None:
    assert parse_json(b'{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}


def test_files_of_others_are_read_by_it() -> None:
    """`json.loads` was called in forty places, of which four caught what is nested too deeply."""
    others = {path.name for path in PACKAGES.rglob("*.py") if re.search(r"\bjson\.loads?\(", path.read_text("utf-8"))}
    assert others == OWN_MESSAGES
