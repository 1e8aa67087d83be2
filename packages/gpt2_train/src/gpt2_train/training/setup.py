"""Setting up a run: tokenizer, data, model size, batches, and the checkpoint to resume from.

All processes set up together, with the same result. What can differ from one machine to another (the newest
checkpoint in a folder on network storage) the first process decides for all.

The model is built without memory, divided, and only then given memory and values: no process ever holds the whole
model: on its device it has its own share from the beginning, and on the host one matrix at a time. Values are drawn (or
read) whole, in the same order by every process, which keeps its part of each: the same seed gives the same weights in
every layout, and nothing is sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt2_train.checkpoint.info import CheckpointInfo, describe_tokenizer, latest_checkpoint, read_info
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.config.files import CHECKPOINTS_FOLDER
from gpt2_train.config.layout import check_tensor_parallel
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.conversion.weights import ModelWeights
from gpt2_train.data.blending import Blend
from gpt2_train.data.corpus import open_corpora
from gpt2_train.data.micro_batches import MicroBatches
from gpt2_train.distributed.collectives import from_first_rank, keep_on_all_ranks
from gpt2_train.distributed.dtensors import fill
from gpt2_train.distributed.mesh import World
from gpt2_train.distributed.parallelize import parallelize
from gpt2_train.distributed.randomness import mixed_seed
from gpt2_train.inference.model import InferenceModel
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.training.inputs import (
    SamplesAndTasks,
    blend,
    check_same_data,
    config_of_first_weights,
    make_batches,
    open_first_weights,
    open_tokenizer,
    read_samples_and_tasks,
    with_positions_of,
)
from gpt2_train.training.memory import memory_per_rank, size_line
from gpt2_train.training.plan import Plan, free_everywhere, make_plan
from gpt2_train.training.run_folder import check_same_run, data_identity, identity_settings
from indexed_tokens import Tokenizer


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is set up.

    Attributes:
        settings: as given.
        world: this process among all.
        folder: the run's folder.
        tokenizer: the one that made the data.
        config: the model's shape.
        plan: steps, batches, precision.
        batches: makes micro-batches of samples.
        training, validation: samples; None where no document fell to validation.
        resumed: the checkpoint to resume from, None for a new run.
        identity: the settings that decide the weights.
        first_weights: the model whose weights a new run begins with; None for random ones.
        data: what the training files are.
        source: the model for inference, without weights.
        samples_and_tasks: the samples and tasks of the run.
    """

    settings: TrainSettings
    world: World
    folder: Path
    tokenizer: Tokenizer
    config: ModelConfig
    plan: Plan
    batches: MicroBatches
    training: Blend
    validation: Blend | None
    resumed: CheckpointInfo | None
    identity: dict[str, Any]
    first_weights: ModelWeights | None
    data: list[dict[str, Any]]
    source: InferenceModel
    samples_and_tasks: SamplesAndTasks

    @property
    def step(self) -> int:
        """The step from which the run begins."""
        return self.resumed.step if self.resumed else 0

    @property
    def saves_in_background(self) -> bool:
        """Whether it is certain that a checkpoint is saved before the last step, and training is to go on meanwhile."""
        settings = self.settings
        if self.plan.steps is None or not (settings.save and settings.async_checkpoint and settings.save_every):
            return False
        return (self.step // settings.save_every + 1) * settings.save_every < self.plan.steps

    def epochs(self, step: int) -> float:
        """Passes over the training split after `step` steps."""
        return step * self.settings.global_batch_size / self.training.epoch_samples

    def resolved_settings(self) -> TrainSettings:
        """The settings with every default that depends on machine or data filled in."""
        settings, plan = self.settings, self.plan
        has_length = settings.steps or settings.tokens or settings.epochs or settings.minutes
        changes: dict[str, Any] = {
            "model": None,
            "layers": self.config.layers,
            "hidden": self.config.hidden,
            "heads": self.config.heads,
            "vocabulary_size": self.config.vocabulary_size,
            "micro_batch_size": plan.micro_batch,
            "data_parallel": self.world.dp_size,
            "precision": plan.precision,
            "compile": "blocks" if plan.compiled else False,
            "attention": plan.attention.kernel if plan.attention is not None else "auto",
            "device": self.world.device.type,
            "threads": torch.get_num_threads(),
            **({} if has_length else {"epochs": 1.0}),
        }
        return dataclasses.replace(settings, **changes)


def set_up(settings: TrainSettings, world: World, folder: Path) -> Run:
    """Set up a run; all processes call this together.

    Raises Gpt2UsageError for settings or data that don't fit together, or a folder that holds another run.
    """

    def read_checkpoint() -> CheckpointInfo | None:
        found = latest_checkpoint(folder / CHECKPOINTS_FOLDER)
        return read_info(found) if found is not None else None

    resumed = from_first_rank(read_checkpoint)
    tokenizer = keep_on_all_ranks(lambda: open_tokenizer(settings))
    first = keep_on_all_ranks(lambda: open_first_weights(settings, resumed))
    source_of_shape = first if first is not None else resumed
    settings = with_positions_of(settings, source_of_shape.config if source_of_shape is not None else None)
    config = settings.model_config(tokenizer.vocabulary_size)
    if first is None and settings.init_from and resumed is not None:
        config = dataclasses.replace(resumed.config, dropout=settings.dropout)
    elif first is not None:
        config = keep_on_all_ranks(lambda: config_of_first_weights(settings, first, tokenizer))
    check_tensor_parallel(config, world.tp_size, sequence_parallel=settings.sequence_parallel)
    corpora, weights = keep_on_all_ranks(lambda: open_corpora(settings.corpora(), settings.split_weights()))
    data = data_identity(corpora, weights)
    check_same_data(data, [prefix for _, prefix in settings.corpora()])
    source = _untrained(settings, world, folder, config, tokenizer, data)
    samples_and_tasks = keep_on_all_ranks(lambda: _read_samples_and_tasks(settings, world, source))
    training = blend(settings, world, folder, corpora, weights, "train")
    validation = blend(settings, world, folder, corpora, weights, "valid")
    if training is None:
        raise Gpt2UsageError("the training split holds no tokens: change --split or give other --data.")
    free = free_everywhere(world)
    plan = from_first_rank(lambda: make_plan(settings, world, config, training, resumed, folder, free))
    first_identity: dict[str, Any] = {}
    if first is not None:
        first_identity = {"init_from": from_first_rank(first.digest)}
    elif settings.init_from and resumed is not None:
        first_identity = {"init_from": resumed.settings.get("init_from")}
    run = Run(
        settings=settings,
        world=world,
        folder=folder,
        tokenizer=tokenizer,
        config=config,
        plan=plan,
        batches=keep_on_all_ranks(lambda: make_batches(settings, world, plan, config, tokenizer, corpora)),
        training=training,
        validation=validation,
        resumed=resumed,
        identity=identity_settings(settings, plan.precision) | first_identity,
        first_weights=first,
        data=data,
        source=source,
        samples_and_tasks=samples_and_tasks,
    )
    if resumed is not None:
        prefixes = [prefix for _, prefix in settings.corpora()]
        check_same_run(resumed, folder, config, run.identity, run.data, describe_tokenizer(tokenizer), prefixes)
    return run


def _untrained(
    settings: TrainSettings,
    world: World,
    folder: Path,
    config: ModelConfig,
    tokenizer: Tokenizer,
    data: list[dict[str, Any]],
) -> InferenceModel:
    """The run's model for inference, before there are weights."""

    def load() -> GPT2:
        raise Gpt2Error(f"the model of {folder} is asked for weights before it is trained.")

    return InferenceModel(
        folder=folder,
        step=0,
        config=config,
        tokenizer=tokenizer,
        device=world.device,
        trained_with=tokenizer.fingerprint,
        settings=settings.identity(),
        data=data,
        load=load,
    )


def _read_samples_and_tasks(settings: TrainSettings, world: World, source: InferenceModel) -> SamplesAndTasks:
    """The samples and evaluation tasks asked for; the first process alone prints notes on them."""
    with contextlib.nullcontext() if world.rank == 0 else contextlib.redirect_stderr(io.StringIO()):
        return read_samples_and_tasks(settings, source)


def describe_run(run: Run) -> list[str]:
    """The lines shown before the first step: the model, its memory, the data, the layout."""
    config, plan, world = run.config, run.plan, run.world
    memory = memory_per_rank(
        config,
        micro_batch=plan.micro_batch,
        tensor_parallel=world.tp_size,
        data_parallel=world.dp_size,
        data_parallel_replicate=world.replicas,
        reshard=run.settings.reshard,
        accumulation=plan.accumulation,
        precision=plan.precision,
        activation_checkpointing=run.settings.activation_checkpointing,
        sequence_parallel=run.settings.sequence_parallel,
        optimizer=run.settings.optimizer,
        compiled=plan.compiled,
        on_cpu=world.device.type == "cpu",
        stages_checkpoints=run.saves_in_background,
    )
    data_parallel = f"{world.dp_size}" + (f" with {world.replicas} copies" if world.replicas > 1 else "")
    length = f"{run.settings.minutes or 0:g} minutes in steps of {plan.tokens_per_step:,} tokens"
    if plan.steps is not None:
        length = f"{plan.steps:,} steps of {plan.tokens_per_step:,} tokens ({run.epochs(plan.steps):.2f} epochs)"
    return [
        size_line(config, memory),
        f"data: {run.training.epoch_tokens:,} tokens to train on ({run.training.epoch_samples:,} sequences per epoch), "
        f"{run.validation.epoch_tokens if run.validation else 0:,} to validate",
        f"run: {length} on {world.size} process{'es' if world.size > 1 else ''} ({world.device.type}, "
        f"{plan.precision}): data parallel {data_parallel}, tensor parallel {world.tp_size}, "
        f"{plan.micro_batch} × {plan.accumulation} sequences each",
        *([str(plan.attention)] if plan.attention is not None else []),
    ]


def build_model(run: Run) -> GPT2:
    """The model on its device, parallelised; with its initial weights if the run is new, else without values."""
    change = functools.partial(
        parallelize,
        world=run.world,
        activation_checkpointing=run.settings.activation_checkpointing,
        compiled=run.plan.compiled,
        reshard=run.settings.reshard,
        sequence_parallel=run.settings.sequence_parallel,
    )
    model = GPT2.empty(run.config, run.world.device, change=change)
    if run.resumed is None:
        fill(model, first_values(run, model))
    return model.train()


def first_values(run: Run, model: GPT2) -> Iterator[tuple[str, Tensor]]:
    """What the parameters of a new run begin with, by name: those of --init-from, or random ones."""
    if run.first_weights is not None:
        return run.first_weights.padded()
    return model.initial_weights(torch.Generator().manual_seed(mixed_seed(run.settings.seed)))
