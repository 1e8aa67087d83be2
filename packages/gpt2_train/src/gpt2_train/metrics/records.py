"""The content of `metrics.jsonl`, for all that show it: the measurements of its rows by name, and the runs they are of.

A row is of a logged step, of an evaluation (`valid_loss`), or has a `kind` of its own: `task` for the result of an
evaluation task, `sample` for a text that the model wrote. The file is read as it stands, while its run is running, too:
a last line that is being written is left out, and where a run fell back to an earlier checkpoint (a step follows that
is not after the last one), what it had recorded beyond that is left out, too. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.files import METRICS_FILE, is_number, read_records

NOT_MEASURED = frozenset({"step", "steps", "tokens", "seconds", "used_seconds", "valid_tokens", "seconds_left"})
"""Numbers of a row that say when and how much, not how well."""


def measurements(row: dict[str, Any]) -> dict[str, float]:
    """Measurements of a row, by name; figures of a task are called TASK:INPUT/FIGURE, and its counts are left out."""
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


@dataclass
class RecordedRun:
    """A training run.

    Attributes:
        name: how it is called in charts.
        values: (step, value) of each quantity (a name such as `loss`, or `lambada/last_word_accuracy`), in the order of
            steps.
    """

    name: str
    values: dict[str, list[tuple[int, float]]] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        """The last step at which something was measured."""
        return max(points[-1][0] for points in self.values.values())


def read_runs(texts: tuple[str, ...]) -> list[RecordedRun]:
    """The runs that `texts` name: each a folder, or NAME=FOLDER. A run without a name gets one by its folder.

    Raises Gpt2UsageError where there is no run, or nothing was recorded yet.
    """
    named = [_name_and_folder(text) for text in texts]
    folders = [folder for name, folder in named if name is None]
    short = iter(short_names(folders))
    return [read_run(folder, next(short) if name is None else name) for name, folder in named]


def _name_and_folder(text: str) -> tuple[str | None, Path]:
    name, equals, folder = text.partition("=")
    # A folder may have such a sign in its own name.
    if equals and not Path(text).exists():
        return name, Path(folder)
    path = Path(text)
    return None, path.parent if path.name == METRICS_FILE else path


def short_names(folders: list[Path]) -> list[str]:
    """The last parts of each folder, as many as tell all of them apart."""
    parts = [folder.absolute().parts[1:] for folder in folders]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def read_run(folder: Path, name: str) -> RecordedRun:
    """The run in `folder`. Raises UsageError where there is none, it can't be read, or nothing was recorded yet."""
    path = folder / METRICS_FILE
    if not path.is_file():
        raise Gpt2UsageError(f"{folder} holds no {METRICS_FILE}: give the folder that `gpt2 train --output` wrote.")
    run = RecordedRun(name)
    _add_values(run, read_records(path))
    if not run.values:
        raise Gpt2UsageError(f"{path} holds no measurement yet: wait for the first logged step.")
    return run


def _add_values(run: RecordedRun, rows: Iterable[dict[str, Any]]) -> None:
    step = 0
    for row in rows:
        if row["step"] < step:
            _cut_from(run, row["step"])
        step = int(row["step"])
        for name, value in measurements(row).items():
            points = run.values.setdefault(name, [])
            if points and points[-1][0] == step:
                points.pop()
            points.append((step, value))


def _cut_from(run: RecordedRun, step: int) -> None:
    """Forget what was measured at `step` and after."""
    run.values = {
        name: kept for name, points in run.values.items() if (kept := [point for point in points if point[0] < step])
    }
