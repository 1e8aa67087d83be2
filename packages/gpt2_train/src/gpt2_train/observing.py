"""What a run shows of its model while it trains: samples, which are texts that it writes, and evaluation tasks.

Both are done before the first step, every so many steps, and after the last, with the weights as they are, and leave no
trace in the training: its losses are the same to the last bit with and without them. Every choice of a sample follows
from its prompt and the seed, so a run that resumes writes the same ones, and two samples of one prompt differ by what
the model has learned between them, not by chance. What is asked for, files and prompts, is read and checked before the
training begins. Each result is a row of `metrics.jsonl`; a run that resumes leaves out those that are there.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from command_kit import Progress
from gpt2_train.collectives import from_first_rank, on_all_ranks
from gpt2_train.config import TrainSettings
from gpt2_train.evaluation import Task, parse_task
from gpt2_train.generator import Encoder, GeneratedText, GenerationRequest, TextSession
from gpt2_train.inference import InferenceModel
from gpt2_train.metrics import MetricsLog
from gpt2_train.model import GPT2
from gpt2_train.model_in_training import plain_view
from gpt2_train.parallel import World
from gpt2_train.prompts import prompts_of_file, valid_text
from gpt2_train.sampling import Sampling
from gpt2_train.scoring import Scorer

SAMPLES_AT_ONCE = 8
"""Samples written together: bounds the memory of their keys and values."""


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


class Observer:
    """Writes samples and runs evaluation tasks between the steps of a run; all its processes call it together.

    Args:
        run: what was settled before the first step.
        model: as it is trained.
        log: where results go.
        is_stopped: whether a signal asked any process of the run to stop; all processes ask together.
    """

    def __init__(self, run: Prepared, model: GPT2, log: MetricsLog, is_stopped: Callable[[], bool]) -> None:
        self.run, self.model, self.log, self.is_stopped = run, model, log, is_stopped

    def observe(self, step: int) -> None:
        """Do what is due after `step` steps. When a signal comes the rest is left out, and done when the run resumes.

        Raises Gpt2Error if the model's output is not finite.
        """
        due = outstanding(self.run, step)
        if not due.samples and not due.tasks:
            return
        with plain_view(self.model, self.run.world) as plain, contextlib.suppress(_StoppedError):
            source = dataclasses.replace(self.run.source, step=step, load=lambda: plain)
            for at in range(0, len(due.samples), SAMPLES_AT_ONCE):
                self._write(source, due.samples[at : at + SAMPLES_AT_ONCE])
            for task in due.tasks:
                self._measure(source, task)

    def _write(self, source: InferenceModel, requests: Sequence[GenerationRequest]) -> None:
        """Write samples, on one data-parallel rank, while the others wait."""
        if self.is_stopped():
            raise _StoppedError
        began = time.monotonic()
        # The generator and its cache go as soon as the texts are there.
        texts = on_all_ranks(
            lambda: TextGenerator(source, len(requests)).generate(requests) if self.run.world.dp_rank == 0 else []
        )[0]
        seconds = (time.monotonic() - began) / len(texts)
        for request, text in zip(requests, texts, strict=True):
            row = {
                "prompt": text.prompt,
                "sample": text.sample,
                "text": text.text,
                "written": text.tokens,
                "finished": text.finished,
                "seed": request.seed,
                "temperature": request.sampling.temperature,
                "top_k": request.sampling.top_k,
            }
            self._record(source.step, "sample", row, seconds)

    def _measure(self, source: InferenceModel, task: ReadTask) -> None:
        began = time.monotonic()
        scorer = _Scorer(source, self.is_stopped, precision=self.run.plan.precision)
        if self.run.world.rank:
            scorer.progress_stream = io.StringIO()
        result = task.task.measure(scorer, task.found)
        row = {"task": task.task.name, "settings": task.settings, "result": result}
        self._record(source.step, "task", row, time.monotonic() - began)

    def _record(self, step: int, kind: str, values: dict[str, Any], seconds: float) -> None:
        row = {
            "step": step,
            "tokens": step * self.run.plan.tokens_per_step,
            "kind": kind,
            **values,
            "took_seconds": round(seconds, 3),
        }
        self.log.write(row)
        self.run.world.say(line_of(row, self.run.plan.steps))


class _StoppedError(Exception):
    """A signal asked for a stop."""


class _Scorer(Scorer):
    """A scorer that lets the processes of a run find out, batch by batch, whether they are to stop."""

    def __init__(self, source: InferenceModel, is_stopped: Callable[[], bool], *, precision: str) -> None:
        super().__init__(source, precision=precision)
        self._is_stopped = is_stopped
        self.progress_stream: io.StringIO | None = None

    def progress(self, label: str, unit: str, total: int) -> Progress:
        """Progress that raises _StoppedError where it is reported, on all processes at once."""
        is_stopped = self._is_stopped

        class Stoppable(Progress):
            def update(self, done: int, note: str = "") -> None:
                super().update(done, note)
                if is_stopped():
                    raise _StoppedError

        return Stoppable(label, unit, total, stream=self.progress_stream)


def outstanding(run: Prepared, step: int) -> Observations:
    """What is due after `step` steps of `run`; all processes call this together.

    At the step that the run began or resumed at, what is in the log already is left out.
    """
    asked = run.observations
    is_end = step in (0, run.plan.steps)
    samples = asked.samples if is_end or (asked.sample_every and step % asked.sample_every == 0) else ()
    tasks = asked.tasks if is_end or (asked.task_every and step % asked.task_every == 0) else ()
    if (samples or tasks) and run.resumed is not None and step == run.step:
        done = from_first_rank(lambda: _done(run.folder / FILE, step))
        samples = tuple(request for request in samples if [request.prompt, request.sample] not in done)
        tasks = tuple(task for task in tasks if [task.task.name, task.settings] not in done)
    return dataclasses.replace(asked, samples=samples, tasks=tasks)


def _done(log: Path, step: int) -> list[list[Any]]:
    """The samples and tasks of `step` that a log holds."""
    rows = [row for row in read_rows(log) if row.get("step") == step]
    return [[row.get("prompt"), row.get("sample")] for row in rows if row.get("kind") == "sample"] + [
        [row.get("task"), row.get("settings")] for row in rows if row.get("kind") == "task"
    ]
