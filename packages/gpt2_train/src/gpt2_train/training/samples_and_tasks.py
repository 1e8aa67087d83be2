"""Samples (texts that the model generates) and evaluation tasks during training.

Both are done before the first step, every so many steps, and after the last, with the weights as they are, and leave no
trace in the training: its losses are the same to the last bit with and without them. Every choice of a sample follows
from its prompt and the seed: a run that resumes generates the same ones, and two samples of one prompt differ by what
the model has learned between them, not by chance. What is asked for, files and prompts, is read and checked before the
training begins. Each result is a row of `metrics.jsonl`; a run that resumes leaves out those that are there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from command_kit import Progress
from gpt2_train.config.files import METRICS_FILE
from gpt2_train.distributed.collectives import from_first_rank, on_all_ranks
from gpt2_train.inference.generator import GenerationRequest, TextGenerator
from gpt2_train.inference.model import InferenceModel
from gpt2_train.inference.scorer import Scorer
from gpt2_train.metrics.records import read_records
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.training.inputs import ReadTask, SamplesAndTasks
from gpt2_train.training.model_view import TrainingRunner, inference_view
from gpt2_train.training.setup import Run
from gpt2_train.training.state import TrainState

SAMPLES_AT_ONCE = 8
"""Samples in a batch: bounds the memory of their keys and values."""


class Observer:
    """Generates samples and runs evaluation tasks between the steps of a run; all its processes call it together.

    Args:
        run: the run.
        state: the training's, for the step that it has come to.
        model: as it is trained.
        show: logs and shows a row of results.
        is_stopped: whether a signal asked any process of the run to stop; all processes ask together.
    """

    def __init__(
        self,
        run: Run,
        state: TrainState,
        model: GPT2,
        show: Callable[[dict[str, Any]], object],
        is_stopped: Callable[[], bool],
    ) -> None:
        self.run, self.state, self.model, self.show, self.is_stopped = run, state, model, show, is_stopped

    def observe(self) -> None:
        """Do what is due after this step. When a signal comes the rest is left out, and done when the run resumes.

        Raises Gpt2Error if the model's output is not finite.
        """
        todo = due(self.run, self.state.step, self.state.steps)
        if todo.is_empty or self.is_stopped():
            return
        with inference_view(self.model, self.run.world) as plain, contextlib.suppress(_StoppedError):
            source = dataclasses.replace(
                self.run.source,
                step=self.state.step,
                start=lambda: TrainingRunner(plain, self.run.world),
                precision=self.run.plan.precision,
            )
            for at in range(0, len(todo.samples), SAMPLES_AT_ONCE):
                self._write(source, todo.samples[at : at + SAMPLES_AT_ONCE])
            for task in todo.tasks:
                self._measure(source, task)

    def _write(self, source: InferenceModel, requests: Sequence[GenerationRequest]) -> None:
        """Generate samples, on the first data-parallel rank while the others wait."""
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
            self._show("sample", row, seconds)

    def _measure(self, source: InferenceModel, task: ReadTask) -> None:
        began = time.monotonic()
        result = task.task.measure(_StoppableScorer(source, self.run, self.is_stopped), task.found)
        row = {"task": task.task.name, "settings": task.settings, "result": result}
        self._show("task", row, time.monotonic() - began)

    def _show(self, kind: str, values: dict[str, Any], seconds: float) -> None:
        self.show({"kind": kind, **values, "took_seconds": round(seconds, 3)})


class _StoppedError(Exception):
    """A signal asked for a stop."""


class _StoppableScorer(Scorer):
    """A scorer whose processes find out, batch by batch, whether they are to stop; the first one shows progress."""

    def __init__(self, source: InferenceModel, run: Run, is_stopped: Callable[[], bool]) -> None:
        super().__init__(source, precision=run.plan.precision)
        self._is_first, self._is_stopped = run.world.rank == 0, is_stopped

    def progress(self, label: str, unit: str, total: int) -> Progress:
        """Raises _StoppedError where it is reported, on all processes at once."""
        return _StoppableProgress(
            self._is_stopped, label, unit, total, stream=None if self._is_first else io.StringIO()
        )


class _StoppableProgress(Progress):
    def __init__(self, is_stopped: Callable[[], bool], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_stopped = is_stopped

    def update(self, done: int, note: str = "") -> None:
        super().update(done, note)
        if self._is_stopped():
            raise _StoppedError


def due(run: Run, step: int, steps: int | None) -> SamplesAndTasks:
    """What is due after `step` of the `steps` of `run` (None if not known yet); all processes call this together.

    At the step that the run began or resumed at, what is in the log already is left out.
    """
    asked = run.samples_and_tasks
    is_end = step in (0, steps)
    samples = asked.samples if is_end or (asked.sample_every and step % asked.sample_every == 0) else ()
    tasks = asked.tasks if is_end or (asked.task_every and step % asked.task_every == 0) else ()
    if (samples or tasks) and run.resumed is not None and step == run.step:
        done = from_first_rank(lambda: _done(run.folder / METRICS_FILE, step))
        samples = tuple(request for request in samples if [request.prompt, request.sample] not in done)
        tasks = tuple(task for task in tasks if [task.task.name, task.settings] not in done)
    return dataclasses.replace(asked, samples=samples, tasks=tasks)


def _done(log: Path, step: int) -> list[list[Any]]:
    """The samples and tasks of `step` that a log holds."""
    rows = [row for row in read_records(log) if row["step"] == step] if log.is_file() else []
    return [[row.get("prompt"), row.get("sample")] for row in rows if row.get("kind") == "sample"] + [
        [row.get("task"), row.get("settings")] for row in rows if row.get("kind") == "task"
    ]
