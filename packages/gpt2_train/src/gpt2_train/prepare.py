"""Everything that is settled before the first step: tokenizer, data, model size, batches, and what is resumed.

All processes prepare together and come to the same answers. What can differ from one machine to another (the newest
checkpoint in a folder on network storage) the first process decides for all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gpt2_train.attention_kernels import AttentionChoice, choose_attention
from gpt2_train.auto_micro_batch import choose_micro_batch
from gpt2_train.checkpoint import FOLDER, CheckpointInfo, describe_tokenizer, latest_checkpoint, read_info
from gpt2_train.collectives import from_first_rank, keep_on_all_ranks, on_all_ranks, rank_and_size
from gpt2_train.compilation import Compilation, choose_compilation
from gpt2_train.config import GPT2_SEQUENCE_LENGTH, ModelConfig, TrainSettings
from gpt2_train.conversion.weights import ModelWeights
from gpt2_train.data import Blend, Corpus, blend_split, open_corpora
from gpt2_train.data.made_with import recorded_fingerprint
from gpt2_train.data.shared_cache import SharedIndexCache
from gpt2_train.device import choose_precision, free_memory
from gpt2_train.documents import attention_kind
from gpt2_train.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.inference import InferenceModel, end_of_text
from gpt2_train.layout import check_tensor_parallel, plan_batches
from gpt2_train.memory import memory_per_rank, size_line
from gpt2_train.micro_batches import MicroBatches
from gpt2_train.model import GPT2
from gpt2_train.observations import Observations, read_observations
from gpt2_train.run_folder import CACHE_FOLDER, CONFIG_FILE, check_same_run, data_identity, identity_settings
from gpt2_train.time_budget import UsedTime, recorded_time
from gpt2_train.world import World
from indexed_tokens import Tokenizer, corpus_tokenizer, tokenizer_path


@dataclasses.dataclass(frozen=True)
class Plan:
    """What follows from settings, data and world before the first step.

    Attributes:
        steps: optimizer steps of the whole run; None as long as the clock has not said which is the last.
        used: the time used by the run that is resumed; None for a run that did not go by time, or a new one.
        micro_batch: sequences that a process takes at once.
        accumulation: micro-batches of a process in one step.
        chosen_by_memory: whether the micro-batch is what fits a GPU, and not what was asked for.
        tokens_per_step: over all processes.
        precision: `fp32`, `bf16` or `fp16`.
        compilation: what torch.compile compiles; None for nothing.
        attention: the kernel of attention; None where there is one only.
    """

    steps: int | None
    used: UsedTime | None
    micro_batch: int
    accumulation: int
    chosen_by_memory: bool
    tokens_per_step: int
    precision: str
    compilation: Compilation | None
    attention: AttentionChoice | None

    def goes_past(self, step: int) -> bool:
        """Whether more steps follow `step`, as far as is known."""
        return self.steps is None or step < self.steps


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A run that can begin.

    Attributes:
        settings: as given.
        world: this process among all.
        folder: the run's folder.
        tokenizer: the one that made the data.
        config: the model's shape.
        plan: steps, batches, precision.
        batches: how samples become micro-batches.
        training, validation: samples; None where no document fell to validation.
        resumed: the checkpoint to resume from, None for a new run.
        identity: the settings that decide the weights.
        first_weights: the model whose weights a new run begins with; None for random ones.
        data: what the training files are.
        source: the model as evaluation tasks and samples know it; without weights.
        observations: the samples and tasks of the run.
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
    observations: Observations

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
            "compile": plan.compilation or False,
            "attention": plan.attention.kernel if plan.attention is not None else "auto",
            "device": self.world.device.type,
            "threads": torch.get_num_threads(),
            **({} if has_length else {"epochs": 1.0}),
        }
        return dataclasses.replace(settings, **changes)


def plan_steps(settings: TrainSettings, epoch_samples: int) -> int:
    """Optimizer steps of the run, from its length in steps, tokens or epochs (one epoch if none is given)."""
    if settings.steps is not None:
        return settings.steps
    if settings.tokens is not None:
        return max(1, math.ceil(settings.tokens / (settings.global_batch_size * settings.sequence_length)))
    return max(1, math.ceil((settings.epochs or 1.0) * epoch_samples / settings.global_batch_size))


def open_tokenizer(settings: TrainSettings) -> Tokenizer:
    """The tokenizer that made the data: the one beside the token files, else --tokenizer, else GPT-2's.

    Raises Gpt2UsageError if two corpora, or a corpus and --tokenizer, have different ones, IndexedTokensError if a
    file of it is missing or damaged.
    """
    prefixes = [prefix for _, prefix in settings.corpora()]
    beside = {prefix: found for prefix in prefixes if (found := corpus_tokenizer(prefix)) is not None}
    if settings.tokenizer is not None:
        tokenizer, source = Tokenizer.from_path(settings.tokenizer), f"--tokenizer {settings.tokenizer}"
    elif beside:
        first = next(iter(beside))
        tokenizer, source = beside[first], str(tokenizer_path(first))
    else:
        tokenizer, source = Tokenizer.gpt2(), "GPT-2's tokenizer"
    for prefix in prefixes:
        made_with = beside[prefix].fingerprint if prefix in beside else recorded_fingerprint(prefix)
        if made_with is None and beside and settings.tokenizer is None:
            raise Gpt2UsageError(
                f"{prefix} names no tokenizer, where {next(iter(beside))} has its own beside it: give --tokenizer "
                f"{tokenizer_path(next(iter(beside)))} if that made both, else train on them one at a time."
            )
        if made_with is not None and made_with != tokenizer.fingerprint:
            raise Gpt2UsageError(
                f"{prefix} was made with another tokenizer than {source}: its token ids would mean other text; "
                + (
                    "leave out --tokenizer, or tokenize the text again with it."
                    if settings.tokenizer is not None
                    else "give the --tokenizer that made it."
                    if not beside
                    else "tokenize the texts again with one tokenizer."
                )
            )
    return tokenizer


def open_first_weights(settings: TrainSettings, resumed: CheckpointInfo | None) -> ModelWeights | None:
    """The model of --init-from, its tensors not read yet; None without it.

    A run that resumes no longer needs it: then None, too, if it is gone. Raises Gpt2UsageError.
    """
    if not settings.init_from or (resumed is not None and not Path(settings.init_from).exists()):
        return None
    from gpt2_train.conversion.base import ReadOptions
    from gpt2_train.conversion.opening import open_weights

    return open_weights(settings.init_from, ReadOptions(heads=settings.heads, tokenizer=settings.tokenizer))


def with_positions_of(settings: TrainSettings, model: ModelConfig | None) -> TrainSettings:
    """`settings` with sequences as long as `model`, that of --init-from, takes them, unless another length is given."""
    if model is None or not settings.init_from or settings.sequence_length != GPT2_SEQUENCE_LENGTH:
        return settings
    return dataclasses.replace(settings, sequence_length=model.sequence_length)


def config_of_first_weights(settings: TrainSettings, first: ModelWeights, tokenizer: Tokenizer) -> ModelConfig:
    """The shape of the model of --init-from, with the run's dropout.

    Raises Gpt2UsageError if the settings ask for another shape, or the data was made with another tokenizer.
    """
    own = None if first.assumes_tokenizer else first.tokenizer
    if own is not None and own.fingerprint != tokenizer.fingerprint:
        raise Gpt2UsageError(
            f"{settings.init_from} was trained with another tokenizer than the data was made with: tokenize the texts "
            "with the model's own (`webtext tokenize --tokenizer`)."
        )
    if own is None and first.config.vocabulary_size != tokenizer.vocabulary_size:
        raise Gpt2UsageError(
            f"{settings.init_from} knows {first.config.vocabulary_size:,} token ids, the data's tokenizer has "
            f"{tokenizer.vocabulary_size:,}: tokenize the texts with the model's own tokenizer."
        )
    config = dataclasses.replace(first.config, dropout=settings.dropout)
    asked = dataclasses.replace(settings, sequence_length=config.sequence_length)
    if settings.names_a_size and asked.model_config(config.vocabulary_size) != config:
        raise Gpt2UsageError(
            f"{settings.init_from} has {config.layers} layers, width {config.hidden} and {config.heads} heads: leave "
            "out --model, --layers, --hidden and --heads, or give these."
        )
    if settings.sequence_length != config.sequence_length:
        raise Gpt2UsageError(
            f"{settings.init_from} has {config.sequence_length} positions, and --sequence-length is "
            f"{settings.sequence_length}: leave it out."
        )
    return config


def prepare(settings: TrainSettings, world: World, folder: Path) -> Prepared:
    """Settle a run; all processes call this together.

    Raises Gpt2UsageError for settings or data that don't fit together, or a folder that holds another run.
    """

    def read_checkpoint() -> CheckpointInfo | None:
        found = latest_checkpoint(folder / FOLDER)
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
    observations = keep_on_all_ranks(lambda: _read_observations(settings, world, source))
    training = _blend(settings, world, folder, corpora, weights, "train")
    validation = _blend(settings, world, folder, corpora, weights, "valid")
    if training is None:
        raise Gpt2UsageError("the training split holds no tokens: change --split or give other --data.")
    free = _free_everywhere(world)
    plan = from_first_rank(lambda: make_plan(settings, world, config, training, resumed, folder, free))
    first_identity: dict[str, Any] = {}
    if first is not None:
        first_identity = {"init_from": from_first_rank(first.digest)}
    elif settings.init_from and resumed is not None:
        first_identity = {"init_from": resumed.settings.get("init_from")}
    run = Prepared(
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
        observations=observations,
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
    """The run's model as inference knows it, before there are weights."""

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


def _read_observations(settings: TrainSettings, world: World, source: InferenceModel) -> Observations:
    """The samples and evaluation tasks asked for; what there is to be said of them is said by the first process."""
    with contextlib.nullcontext() if world.rank == 0 else contextlib.redirect_stderr(io.StringIO()):
        return read_observations(settings, source)


def check_same_data(data: list[dict[str, Any]], prefixes: Sequence[str]) -> None:
    """Raise Gpt2UsageError on all processes if one of them reads other token files than the first one."""
    expected, rank = from_first_rank(lambda: data), rank_and_size()[0]

    def compare() -> None:
        for prefix, ours, theirs in zip(prefixes, data, expected, strict=True):
            if ours != theirs:
                raise Gpt2UsageError(
                    f"{prefix} on {socket.gethostname()} (process {rank}) is another file than the one that process 0 "
                    f"reads: copy the same token files to all machines."
                )

    on_all_ranks(compare)


def _blend(
    settings: TrainSettings,
    world: World,
    folder: Path,
    corpora: list[Corpus],
    weights: list[float] | None,
    split: str,
) -> Blend | None:
    return blend_split(
        corpora,
        weights,
        split,
        sequence_length=settings.sequence_length,
        seed=settings.seed,
        cache=SharedIndexCache(folder / CACHE_FOLDER),
        say=world.say,
    )


def _free_everywhere(world: World) -> int | None:
    """Free bytes of the GPU that has the fewest; None without GPUs. All processes call this together."""
    found = on_all_ranks(lambda: free_memory(world.device))
    return min((free for free in found if free is not None), default=None)


def make_plan(
    settings: TrainSettings,
    world: World,
    config: ModelConfig,
    training: Blend,
    resumed: CheckpointInfo | None,
    folder: Path,
    free: int | None = None,
) -> Plan:
    """Steps, batches, precision and kernels of the run; a resumed one keeps its precision.

    `free` are the bytes of memory for a process that decide its micro-batch, unless that was asked for.
    Raises as `plan_batches`, `choose_compilation` and `choose_attention` do.
    """
    recorded = resumed.settings.get("precision") if resumed else None
    precision = choose_precision(settings.precision, recorded, world.device)
    compilation = choose_compilation(settings.compile, world.device, world.size)
    asked = settings.micro_batch_size
    by_memory = asked == "auto" and free is not None and settings.global_batch_size >= world.dp_size
    if by_memory and free is not None:
        asked = choose_micro_batch(
            settings,
            config,
            free,
            recorded_in=folder / CONFIG_FILE,
            device=world.device.type,
            tensor_parallel=world.tp_size,
            data_parallel=world.dp_size,
            precision=precision,
            compiled=compilation is not None,
        )
    micro_batch, accumulation = plan_batches(
        settings.global_batch_size,
        asked,
        world.dp_size,
        on_cpu=world.device.type == "cpu",
        sequence_length=settings.sequence_length,
    )
    used = recorded_time(settings, resumed, folder)
    steps: int | None
    if settings.minutes is None:
        steps = plan_steps(settings, training.epoch_samples)
    else:
        steps = used.last_step(resumed.step, settings.minutes) if used is not None and resumed is not None else None
    return Plan(
        steps=steps,
        used=used,
        micro_batch=micro_batch,
        accumulation=accumulation,
        chosen_by_memory=by_memory,
        tokens_per_step=settings.global_batch_size * config.sequence_length,
        precision=precision,
        compilation=compilation,
        attention=choose_attention(
            settings,
            config,
            world.device,
            micro_batch=micro_batch,
            precision=precision,
            state=resumed.state if resumed else None,
        ),
    )


def make_batches(
    settings: TrainSettings,
    world: World,
    plan: Plan,
    config: ModelConfig,
    tokenizer: Tokenizer,
    corpora: Sequence[Corpus],
) -> MicroBatches:
    """How samples become micro-batches. Raises Gpt2UsageError if documents matter and can't be told apart."""
    end = end_of_text(tokenizer)
    separate = settings.documents == "separate"
    flag = "--documents separate" if separate else "--mask-end-of-text" if settings.mask_end_of_text else None
    if flag is not None and (end is None or end >= config.vocabulary_size):
        raise Gpt2UsageError(f"{flag} needs a tokenizer with <|endoftext|>, and the model's ids hold none.")
    if flag is not None:
        for corpus in corpora:
            if not corpus.ends_with(end):
                raise Gpt2UsageError(
                    f"no document of {corpus.prefix} ends with <|endoftext|>, by which {flag} tells documents apart: "
                    "tokenize the text again with `webtext tokenize --append-eod`."
                )
    kind = attention_kind(world.device, plan.precision, is_compiled=plan.compilation is not None) if separate else None
    return MicroBatches(plan.micro_batch, world.device, kind, end, settings.mask_end_of_text)


def describe_run(run: Prepared) -> list[str]:
    """What is said before the first step: the model, its memory, the data, the layout."""
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
        compiled=plan.compilation is not None,
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
