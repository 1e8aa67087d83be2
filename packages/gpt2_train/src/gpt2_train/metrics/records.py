"""What a row of `metrics.jsonl` says, for whatever shows it: measurements by name, and where they were taken.

A row is of a logged step, of an evaluation (`valid_loss`), or has a `kind` of its own: `task` for the result of an
evaluation task, `sample` for a text that the model wrote. Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_kit import parse_json

NOT_MEASURED = frozenset({"step", "tokens", "seconds", "valid_tokens", "seconds_left"})
"""Numbers of a row that say when and how much, not how well."""


def read_records(path: Path, size: int | None = None) -> Iterator[dict[str, Any]]:
    """The rows of `metrics.jsonl`, without a line that is being written or was cut by a crash.

    With `size` only those in the first so many bytes.
    """
    with path.open("rb") as file:
        at = 0
        for line in file:
            at += len(line)
            if size is not None and at > size:
                return
            try:
                row = parse_json(line)
            except ValueError:
                continue
            if isinstance(row, dict) and is_number(row.get("step")):
                yield row


def is_number(value: Any) -> bool:
    """Whether a value of a JSON object is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def measurements(row: dict[str, Any]) -> dict[str, float]:
    """What a row measured, by name; figures of a task are called TASK:INPUT/FIGURE, and its counts are left out."""
    if "kind" not in row:
        return {name: float(value) for name, value in row.items() if name not in NOT_MEASURED and is_number(value)}
    result = row.get("result")
    if row["kind"] != "task" or not isinstance(result, dict):
        return {}
    task = task_name(row)
    return {f"{task}/{name}": value for name, value in result.items() if isinstance(value, float) and is_number(value)}


def task_name(row: dict[str, Any]) -> str:
    """The task of a row, with what tells it from others of its name.

    >>> task_name({"task": "wikitext", "settings": {"input": "texts/wiki.test.txt", "overlap": 32}})
    'wikitext:wiki.test,overlap=32'
    """
    settings = row.get("settings")
    parts = [
        Path(value).stem if isinstance(value, str) else f"{name}={value}"
        for name, value in (settings.items() if isinstance(settings, dict) else ())
    ]
    return f"{row.get('task')}:{','.join(parts)}" if parts else str(row.get("task"))
