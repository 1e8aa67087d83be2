"""Reading the files of evaluation sets: one JSON object a line, or a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from command_kit import parse_json, setting
from gpt2_train.config.errors import Gpt2UsageError


def input_setting() -> Any:
    """The field `input`, the same in every task that has it."""
    return setting(
        "", "file of the evaluation set: a text (wikitext), or JSON lines (lambada, hellaswag)", metavar="FILE"
    )


def check_readable(path: str) -> None:
    """Raise Gpt2UsageError if a file is not there, or can't be opened."""
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise Gpt2UsageError(f"can't read {path} ({error.strerror}): check the path.") from error


def read_text(path: str, task: str) -> str:
    """The text of `path`, `--input` of `task`. Raises Gpt2UsageError if it is not given or can't be read."""
    if not path:
        raise Gpt2UsageError(f"--task {task} needs --input FILE: give the file of its texts.")
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Gpt2UsageError(f"{path} is not UTF-8 ({error.reason} at byte {error.start:,}): convert it.") from error
    except OSError as error:
        raise Gpt2UsageError(f"can't read {path} ({error.strerror}): check the path.") from error


def read_rows(path: str, task: str, keys: dict[str, type]) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, each with `keys` of these types.

    Raises Gpt2UsageError naming the line that has none, or if there is no line at all.
    """
    rows = []
    # str.splitlines would also divide at separators such as U+2028, which JSON strings may hold.
    for number, line in enumerate(read_text(path, task).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise Gpt2UsageError(f"{path}, line {number:,}: not JSON ({error}).") from None
        missing = [key for key, kind in keys.items() if not (isinstance(row, dict) and isinstance(row.get(key), kind))]
        if missing:
            raise Gpt2UsageError(f"{path}, line {number:,}: no {missing[0]}; --task {task} needs {', '.join(keys)}.")
        rows.append(row)
    if not rows:
        raise Gpt2UsageError(f"{path} is empty: --task {task} needs one JSON object a line.")
    return rows
