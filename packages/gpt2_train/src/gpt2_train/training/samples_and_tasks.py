"""Samples (texts that the model generates) and evaluation tasks during training.

Both are done before the first step, every N steps, and after the last, with the weights as they are, and leave no
trace in the training: its losses are the same to the last bit with and without them. Every choice of a sample follows
from its prompt and the seed: a run that resumes generates the same ones, and two samples of one prompt differ by what
the model has learned between them, not by chance. The files and prompts asked for are read and checked before the
training begins. Each result is a row of `metrics.jsonl`; a run that resumes leaves out results that are there.

The parameters of a training run are sharded (FSDP2, DTensors), and its blocks compiled or recomputed. None of that is
used here: `inference_view` builds the modules again without memory and gives them the very tensors that are trained, so
that inference runs as it does on a checkpoint, in evaluation mode and with shapes of its own, and the training's
modules, graphs and random numbers are not touched. It costs what training holds anyway during a step: all parameters
of this process's tensor-parallel part, gathered.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from gpt2_train.config.files import read_records
from gpt2_train.config.settings import TrainSettings, given
from gpt2_train.conversion.formats import StoredModel
from gpt2_train.distributed.collectives import on_all_ranks
from gpt2_train.distributed.mesh import World, local
from gpt2_train.distributed.parallelize import free_gathered_parameters
from gpt2_train.evaluation.tasks import Task, parse_task
from gpt2_train.inference.divided import divide
from gpt2_train.inference.engine import GenerationRequest
from gpt2_train.inference.generator import Encoder, TextGenerator
from gpt2_train.inference.model import InferenceModel
from gpt2_train.inference.sampling import Sampling
from gpt2_train.inference.scorer import Scorer
from gpt2_train.model.gpt2 import GPT2

SAMPLES_AT_ONCE = 8
"""Samples in a batch: bounds the memory of their keys and values."""


@dataclasses.dataclass(frozen=True)
class ReadTask:
    """An evaluation task whose input has been read.

    Attributes:
        task: the task.
        found: what its `read` returned.
    """

    task: Task
    found: Any

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that tell it from other tasks of its name, the file that it reads among it."""
        told = given(self.task) | {self.task.source}
        return {name: value for name, value in vars(self.task).items() if name in told}


@dataclasses.dataclass(frozen=True)
class SamplesAndTasks:
    """The samples and evaluation tasks of a run.

    Attributes:
        samples: the texts to generate.
        sample_every: steps between them; 0 for before the first step and after the last only.
        tasks: the evaluation tasks.
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

    def due(self, step: int, steps: int | None, log: Path | None = None) -> SamplesAndTasks:
        """The samples and tasks due after `step` of `steps` (None if not known yet), without the ones in `log`."""
        is_end = step in (0, steps)
        samples = self.samples if is_end or (self.sample_every and step % self.sample_every == 0) else ()
        tasks = self.tasks if is_end or (self.task_every and step % self.task_every == 0) else ()
        rows = [row for row in read_records(log) if row["step"] == step] if log is not None and log.is_file() else []
        written = [[row.get("prompt"), row.get("sample")] for row in rows if row.get("kind") == "sample"]
        measured = [[row.get("task"), row.get("settings")] for row in rows if row.get("kind") == "task"]
        samples = tuple(request for request in samples if [request.prompt, request.sample] not in written)
        tasks = tuple(task for task in tasks if [task.task.name, task.settings] not in measured)
        return dataclasses.replace(self, samples=samples, tasks=tasks)


def read_samples_and_tasks(settings: TrainSettings, world: World, model: StoredModel) -> SamplesAndTasks:
    """Samples and tasks of `settings`, with files read and all checked against `model`, which needs no weights.

    Raises Gpt2UsageError for a prompt or an input that is missing, damaged, or does not fit the model.
    """
    with world.shown_by_first():
        samples = tuple(_requests(settings)) if settings.writes_samples else ()
        for request in samples:
            Encoder(model).encoded(request)
        tasks = tuple(ReadTask(task, task.read(model)) for task in map(parse_task, settings.eval_task))
    return SamplesAndTasks(samples, settings.sample_every or 0, tasks, settings.eval_task_every)


def _requests(settings: TrainSettings) -> Iterator[GenerationRequest]:
    sampling = Sampling(settings.sample_temperature, settings.sample_top_k)
    numbers: dict[str, Iterator[int]] = collections.defaultdict(itertools.count)
    for prompt in settings.sample_prompt or [""]:
        # A prompt that comes again gets another text.
        number = next(numbers[prompt])
        yield GenerationRequest(prompt, tokens=settings.sample_tokens, sampling=sampling, sample=number)


@contextlib.contextmanager
def inference_view(model: GPT2, world: World) -> Iterator[GPT2]:
    """A plain model, in evaluation mode, with the weights of `model`, which must not be changed meanwhile.

    All processes of the data-parallel groups enter and leave together; in between each computes for itself. With tensor
    parallelism it is this process's part of the model, as `inference.divided.divide` makes it.
    """
    group = world.tp_group
    divided = functools.partial(divide, group=group) if group is not None else None
    plain = GPT2.empty(model.config, "meta", change=divided)
    try:
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.unshard()
        for name, parameter in model.named_parameters():
            place, _, leaf = name.rpartition(".")
            setattr(plain.get_submodule(place), leaf, nn.Parameter(local(parameter), requires_grad=False))
        plain.tie()
        yield plain.eval()
    finally:
        free_gathered_parameters(model)


class StoppedError(Exception):
    """A signal asked for a stop."""


def observe(
    todo: SamplesAndTasks,
    model: GPT2,
    world: World,
    stored: StoredModel,
    *,
    precision: str,
    show: Callable[[dict[str, Any]], object],
    is_stopped: Callable[[], bool],
) -> None:
    """Generate samples and run evaluation tasks; all processes of a run call this together.

    Args:
        todo: the due ones. When a signal comes the rest is left out, and done when the run resumes.
        model: as it is trained.
        world: this process among all.
        stored: what is known of the model.
        precision: of the training.
        show: logs and shows a row of results.
        is_stopped: whether a signal asked any process of the run to stop; all processes ask together.

    Raises Gpt2Error if the model's output is not finite.
    """
    if todo.is_empty or is_stopped():
        return
    with inference_view(model, world) as plain, contextlib.suppress(StoppedError), world.shown_by_first():

        def stop() -> None:
            if is_stopped():
                raise StoppedError

        source = InferenceModel(
            stored=stored,
            load=lambda: plain,
            device=world.device,
            precision=precision,
            group=world.tp_group,
            dp_rank=world.dp_rank,
            dp_size=world.dp_size,
            before_batches=stop,
        )
        for at in range(0, len(todo.samples), SAMPLES_AT_ONCE):
            if is_stopped():
                return
            requests, began = todo.samples[at : at + SAMPLES_AT_ONCE], time.monotonic()
            texts = _texts(source, requests, world)
            seconds = round((time.monotonic() - began) / len(texts), 3)
            for request, text in zip(requests, texts, strict=True):
                row = {
                    "kind": "sample",
                    "prompt": text.prompt,
                    "sample": text.sample,
                    "text": text.text,
                    "written": text.tokens,
                    "finished": text.finished,
                    "seed": request.seed,
                    "temperature": request.sampling.temperature,
                    "top_k": request.sampling.top_k,
                    "took_seconds": seconds,
                }
                show(row)
        for task in todo.tasks:
            began = time.monotonic()
            result = task.task.measure(Scorer(source), task.found)
            row = {"kind": "task", "task": task.task.name, "settings": task.settings, "result": result}
            show(row | {"took_seconds": round(time.monotonic() - began, 3)})


def _texts(source: InferenceModel, requests: Sequence[GenerationRequest], world: World) -> list[Any]:
    """Samples, generated on the first data-parallel rank while the others wait; the generator's cache goes with it."""
    found = on_all_ranks(lambda: TextGenerator(source, len(requests)).generate(requests) if world.dp_rank == 0 else [])
    return found[0]
