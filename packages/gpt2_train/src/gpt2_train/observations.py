"""The samples and evaluation tasks that a run is asked for, read and checked before its first step."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

from gpt2_train.config import TrainSettings
from gpt2_train.evaluation import Task, parse_task
from gpt2_train.generator import Encoder, GenerationRequest
from gpt2_train.inference import InferenceModel
from gpt2_train.prompts import prompts_of_file, valid_text
from gpt2_train.sampling import Sampling


@dataclasses.dataclass(frozen=True)
class ReadTask:
    """An evaluation task whose input has been read.

    Attributes:
        task: it.
        found: what its `read` has found.
    """

    task: Task
    found: Any

    @property
    def settings(self) -> dict[str, Any]:
        """What tells it from other tasks of its name, the file that it reads among it."""
        return {
            field.name: getattr(self.task, field.name)
            for field in dataclasses.fields(self.task)  # type: ignore[arg-type]
            if field.name == self.task.source or getattr(self.task, field.name) != field.default
        }


@dataclasses.dataclass(frozen=True)
class Observations:
    """What a run shall show of its model.

    Attributes:
        samples: the texts to write.
        sample_every: steps between them; 0 for before the first step and after the last only.
        tasks: what to measure.
        task_every: as `sample_every`.
    """

    samples: tuple[GenerationRequest, ...] = ()
    sample_every: int = 0
    tasks: tuple[ReadTask, ...] = ()
    task_every: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.samples and not self.tasks


def read_observations(settings: TrainSettings, model: InferenceModel) -> Observations:
    """What `settings` ask for, with files read and all of it checked against `model`, which needs no weights.

    Raises Gpt2UsageError for a prompt or an input that is missing, damaged, or does not fit the model.
    """
    samples = tuple(_requests(settings)) if settings.writes_samples else ()
    for request in samples:
        Encoder(model).token_request(request)
    tasks = tuple(ReadTask(task, task.read(model)) for task in map(parse_task, settings.eval_task))
    return Observations(samples, settings.sample_every or 0, tasks, settings.eval_task_every)


def _requests(settings: TrainSettings) -> Iterator[GenerationRequest]:
    prompts = [valid_text(prompt) for prompt in settings.sample_prompt]
    if settings.sample_prompts is not None:
        prompts += prompts_of_file(settings.sample_prompts)
    sampling = Sampling(settings.sample_temperature, settings.sample_top_k)
    seen: collections.Counter[str] = collections.Counter()
    for prompt in prompts or [""]:
        # A prompt that comes again gets another text.
        yield GenerationRequest(prompt, settings.sample_tokens, sampling, settings.sample_seed, seen[prompt])
        seen[prompt] += 1
