"""Evaluation tasks: what `gpt2 evaluate TASK FILE` can measure, one file of this folder each.

A task is a frozen dataclass below `Task`: its fields, made by `setting`, are flags of `gpt2 evaluate` and keys of the
table [evaluate]; the one that names its FILE is positional. It reads its input first, and then measures a model by
means of a `Scorer`, once or, during training, again and again. A new file is found by itself, and so is one in any
other folder of this package's `__path__`. Keep torch out of a task's imports: `gpt2 evaluate --help` reads all of them.
"""

from __future__ import annotations

import abc
import math
import re
import sys
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from command_kit import parse_json
from command_kit.errors import meant
from command_kit.plugins import find_plugins
from command_kit.settings import make_settings
from gpt2_train.config.errors import Gpt2UsageError

if TYPE_CHECKING:
    from gpt2_train.conversion.formats import StoredModel
    from gpt2_train.inference.scorer import Scorer


_HARNESS = "lm-evaluation-harness measures it, to the same figures: `python -m gpt2_train.evaluation.lm_harness`"
REMOVED = {"hellaswag": _HARNESS, "arc-easy": _HARNESS}
"""Tasks that there are no more, and what to use instead."""


class Task(abc.ABC):
    """One way to measure a model.

    Attributes:
        name: TASK of `gpt2 evaluate TASK FILE`.
        summary: what it measures, in a few words.
        source: the setting that says what it reads: FILE, also of `gpt2 train --eval-task TASK:FILE`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str] = "input"

    @abc.abstractmethod
    def read(self, model: StoredModel) -> Any:
        """All that `measure` needs of the task's input, checked against `model`, whose weights are not read for it.

        Raises Gpt2UsageError if the input is missing, damaged, or does not fit the model.
        """

    @abc.abstractmethod
    def measure(self, scorer: Scorer, found: Any) -> dict[str, Any]:
        """Measure the model of `scorer` on what `read` has found: plain values, as `--json` prints them.

        Raises Gpt2Error.
        """

    def run(self, scorer: Scorer) -> dict[str, Any]:
        """Read the input and measure the model of `scorer`. Raises as `read` and `measure` do."""
        return self.measure(scorer, self.read(scorer.source.stored))

    def describe(self, result: dict[str, Any]) -> list[str]:
        """The lines that a person reads of a result of `run`."""
        shown = {name: f"{value:.5g}" if isinstance(value, float) else value for name, value in result.items()}
        return [f"  {name:<14} {value}" for name, value in shown.items()]


def tasks() -> dict[str, type[Task]]:
    """All tasks by name. Raises Gpt2UsageError if two have the same name, CommandError if one can't be imported."""
    found: dict[str, type[Task]] = {}
    for task in find_plugins(sys.modules[__name__], Task):
        other = found.setdefault(task.name, task)
        if other is not task:
            raise Gpt2UsageError(
                f"two evaluation tasks are called {task.name}, in {other.__module__} and {task.__module__}: rename one."
            )
    return found


def parse_task(text: str) -> Task:
    """The task that a text such as `lambada:FILE` or `wikitext,overlap=32:FILE` names, with its settings.

    FILE is what the task reads (the prefix of token files for held-out-loss), and may hold any character.
    Raises Gpt2UsageError for an unknown task or no FILE, UsageError for a setting that the task lacks or refuses.
    """
    known = tasks()
    head, colon, file = text.partition(":")
    name, *settings = re.split(r",(?=[\w-]+=)", head)
    flag = f"--eval-task {text}"
    if name in REMOVED:
        raise Gpt2UsageError(f"{flag}: {name} is gone: {REMOVED[name]}.")
    if name not in known:
        raise Gpt2UsageError(f"{flag}: no task {name!r}; {meant(name, known)}known are {', '.join(known)}.")
    task = known[name]
    if not colon or not file:
        raise Gpt2UsageError(f"{flag} names no file: write {name}:FILE.")
    kinds = typing.get_type_hints(task)
    values: dict[str, Any] = {}
    for given in settings:
        key, _, value = given.partition("=")
        key = key.replace("-", "_")
        is_number = any(kind in (int, float) for kind in (kinds.get(key), *typing.get_args(kinds.get(key))))
        values[key] = _number(value) if is_number else value
    return make_settings(task, values | {task.source: file}, flag)


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def check_readable(path: str) -> None:
    """Raise Gpt2UsageError if a file is not there, or can't be opened."""
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise Gpt2UsageError(f"can't read {path} ({error.strerror}): check the path.") from error


def read_text(path: str, task: str) -> str:
    """The text of `path`, FILE of `task`. Raises Gpt2UsageError if it is not given or can't be read."""
    if not path:
        raise Gpt2UsageError(f"gpt2 evaluate {task} needs FILE: give the file of its texts.")
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
            raise Gpt2UsageError(f"{path}, line {number:,}: no {missing[0]}; the task {task} needs {', '.join(keys)}.")
        rows.append(row)
    if not rows:
        raise Gpt2UsageError(f"{path} is empty: the task {task} needs one JSON object a line.")
    return rows


def perplexity(loss: float) -> float | None:
    """e to the `loss`; None where that is beyond a floating-point number."""
    return math.exp(loss) if loss < math.log(sys.float_info.max) else None


def figure(value: float | None, digits: int = 2) -> str:
    """A number as a person reads it, None as `n/a`."""
    return "n/a" if value is None else f"{value:,.{digits}f}"
