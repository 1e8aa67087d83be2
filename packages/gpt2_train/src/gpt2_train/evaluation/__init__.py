"""Evaluation tasks: what `gpt2 evaluate --task NAME` can measure, one file of this folder each.

A task is a frozen dataclass below `Task`: its fields, made by `setting`, are flags of `gpt2 evaluate` and keys of the
table [evaluate]. It reads its input first, and then measures a model by means of a `Scorer`, once or, during training,
again and again. A new file is found by itself, and so is one in any other folder of this package's `__path__`. Keep
torch out of a task's imports: `gpt2 evaluate --help` reads all of them.
"""

from __future__ import annotations

import abc
import importlib
import inspect
import pkgutil
from typing import TYPE_CHECKING, Any, ClassVar

from gpt2_train.errors import Gpt2UsageError

if TYPE_CHECKING:
    from gpt2_train.inference import InferenceModel
    from gpt2_train.scoring import Scorer


class Task(abc.ABC):
    """One way to measure a model.

    Attributes:
        name: what `--task` calls it.
        summary: what it measures, in a few words.
        source: the setting that says what it reads, FILE of `gpt2 train --eval-task NAME:FILE`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str] = "input"

    @abc.abstractmethod
    def read(self, model: InferenceModel) -> Any:
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
        return self.measure(scorer, self.read(scorer.source))

    def describe(self, result: dict[str, Any]) -> list[str]:
        """The lines that a person reads of a result of `run`."""
        return [f"  {name:<14} {value}" for name, value in result.items()]


def tasks() -> dict[str, type[Task]]:
    """All tasks by name. Raises Gpt2UsageError if two have the same name."""
    found: dict[str, type[Task]] = {}
    for module_name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        module = importlib.import_module(f"{__name__}.{module_name}")
        for value in vars(module).values():
            is_task = inspect.isclass(value) and issubclass(value, Task) and not inspect.isabstract(value)
            if not is_task or value.__module__ != module.__name__:
                continue
            if value.name in found:
                raise Gpt2UsageError(
                    f"two evaluation tasks are called {value.name}, in {found[value.name].__module__} and "
                    f"{value.__module__}: rename one."
                )
            found[value.name] = value
    return found
