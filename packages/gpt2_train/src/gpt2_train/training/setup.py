"""Setting up a run: tokenizer, data, model size, batches, and the checkpoint to resume from.

All processes set up together, with the same result. What can differ from one machine to another (the newest
checkpoint in a folder on network storage) the first process decides for all.

The model is built without memory, divided, and only then given memory and values: no process ever holds the whole
model: on its device it has its own share from the beginning, and on the host one matrix at a time. Values are drawn (or
read) whole, in the same order by every process, which keeps its part of each: the same seed gives the same weights in
every layout, and nothing is sent.
"""

from __future__ import annotations

import dataclasses
import functools
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from gpt2_train.checkpoint.info import CheckpointInfo, describe_tokenizer, latest_checkpoint, load_tokenizer, read_info
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.files import CACHE_FOLDER, CHECKPOINTS_FOLDER, METRICS_FILE
from gpt2_train.config.layout import check_tensor_parallel
from gpt2_train.config.settings import GPT2_SEQUENCE_LENGTH, ModelConfig, TrainSettings, sequences_in
from gpt2_train.conversion.formats import ModelWeights, ReadOptions, StoredModel, open_weights
from gpt2_train.data.batches import MicroBatches
from gpt2_train.data.corpus import Corpus, made_with, open_corpora, recorded_fingerprint
from gpt2_train.data.index import IndexCache, SampleIndex, read_index
from gpt2_train.data.order import run_order
from gpt2_train.data.streams import Blend, blend_split
from gpt2_train.distributed.collectives import (
    from_first_rank,
    keep_on_all_ranks,
    on_all_ranks,
    rank_and_size,
)
from gpt2_train.distributed.device import note_emulated
from gpt2_train.distributed.mesh import World, fill, mixed_seed
from gpt2_train.distributed.parallelize import missing_for_compilation, parallelize
from gpt2_train.model.attention import attention_kind
from gpt2_train.model.gpt2 import DTYPES, GPT2
from gpt2_train.training.memory import layout_of, memory_per_rank, size_line
from gpt2_train.training.plan import Plan, make_plan
from gpt2_train.training.run_folder import check_same_run, data_identity, identity_settings
from gpt2_train.training.samples_and_tasks import SamplesAndTasks, read_samples_and_tasks
from indexed_tokens import Tokenizer, corpus_tokenizer, tokenizer_path


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is set up.

    Attributes:
        settings: as given.
        world: this process among all.
        folder: the run's folder.
        tokenizer: the one that made the data.
        assumes_tokenizer: whether it is GPT-2's because nothing names one; checkpoints then hold none.
        config: the model's shape.
        plan: steps, batches, precision.
        batches: makes micro-batches of samples.
        training, validation: samples; None where no document fell to validation.
        resumed: the checkpoint to resume from, None for a new run.
        identity: the settings that decide the weights.
        first_weights: the model whose weights a new run begins with; None for random ones.
        stored: what is known of the model.
        samples_and_tasks: the samples and tasks of the run.
    """

    settings: TrainSettings
    world: World
    folder: Path
    tokenizer: Tokenizer
    assumes_tokenizer: bool
    config: ModelConfig
    plan: Plan
    batches: MicroBatches
    training: Blend
    validation: Blend | None
    resumed: CheckpointInfo | None
    identity: dict[str, Any]
    first_weights: ModelWeights | None
    stored: StoredModel
    samples_and_tasks: SamplesAndTasks

    @property
    def known_tokenizer(self) -> Tokenizer | None:
        """The tokenizer, unless it is only assumed: what checkpoints hold."""
        return None if self.assumes_tokenizer else self.tokenizer

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

    def due(self, step: int, steps: int | None) -> SamplesAndTasks:
        """The samples and tasks due after `step` of `steps` (None if not known yet); all processes call this together.

        At the step at which the run resumed, what is in the log already is left out.
        """
        if self.resumed is None or step != self.step:
            return self.samples_and_tasks.due(step, steps)
        return from_first_rank(lambda: self.samples_and_tasks.due(step, steps, self.folder / METRICS_FILE))

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
        info = read_info(found) if found is not None else None
        if info is not None and info.tokenizer:
            load_tokenizer(info.folder)  # Damaged, it would be found by `verify` alone.
        return info

    resumed = from_first_rank(read_checkpoint)
    tokenizer = keep_on_all_ranks(lambda: open_tokenizer(settings))
    # A run that recorded one goes on with it.
    assumes = not names_tokenizer(settings) and not (resumed is not None and resumed.tokenizer)
    first = keep_on_all_ranks(lambda: open_first_weights(settings, resumed))
    settings, config = keep_on_all_ranks(lambda: shape_of_run(settings, resumed, first, tokenizer))
    check_tensor_parallel(config, world.tp_size)
    corpora, weights = keep_on_all_ranks(lambda: open_corpora(settings.corpora(), settings.split_weights()))
    data, prefixes = data_identity(corpora, weights), [prefix for _, prefix in settings.corpora()]
    check_same_data(data, prefixes)
    if assumes:
        keep_on_all_ranks(lambda: check_assumed_tokenizer(corpora))
    stored = StoredModel(
        origin=folder,
        config=config,
        tokenizer=tokenizer,
        trained_with=tokenizer.fingerprint,
        settings=settings.identity(),
        data=data,
    )
    samples_and_tasks = keep_on_all_ranks(lambda: read_samples_and_tasks(settings, world, stored))
    training, validation = (
        blend_split(
            corpora,
            weights,
            split,
            sequence_length=settings.sequence_length,
            seed=settings.seed,
            cache=SharedIndexCache(folder / CACHE_FOLDER),
            say=world.say,
            order=run_order(settings) if split == "train" else None,
        )
        for split in ("train", "valid")
    )
    if training is None:
        raise Gpt2UsageError("the training split holds no tokens: change --split or give other --data.")
    plan = make_plan(settings, world, config, training.epoch_samples, resumed, folder)
    identity = identity_settings(settings, plan.precision)
    if first is not None:
        identity["init_from"] = from_first_rank(first.digest)
    elif settings.init_from and resumed is not None:
        identity["init_from"] = resumed.settings.get("init_from")
    batches = keep_on_all_ranks(lambda: make_batches(settings, world, plan, config, tokenizer, corpora))
    if resumed is not None:
        check_same_run(
            resumed, folder, config, identity, data, describe_tokenizer(None if assumes else tokenizer), prefixes
        )
    return Run(
        settings, world, folder, tokenizer, assumes, config, plan, batches, training, validation, resumed, identity,
        first, stored, samples_and_tasks,
    )  # fmt: skip


def open_tokenizer(settings: TrainSettings) -> Tokenizer:
    """The tokenizer that made the data: the one next to the token files, else --tokenizer, else GPT-2's.

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
        maker = beside[prefix].fingerprint if prefix in beside else recorded_fingerprint(prefix)
        if maker is None and beside and settings.tokenizer is None:
            raise Gpt2UsageError(
                f"{prefix} names no tokenizer, where {next(iter(beside))} has its own next to it: give --tokenizer "
                f"{tokenizer_path(next(iter(beside)))} if that made both, else train on them one at a time."
            )
        if maker is not None and maker != tokenizer.fingerprint:
            raise Gpt2UsageError(
                f"{prefix} was made with another tokenizer than {source}: its token ids would mean other text; give "
                "the --tokenizer that made it, or tokenize the texts again with one tokenizer."
            )
    return tokenizer


def names_tokenizer(settings: TrainSettings) -> bool:
    """Whether anything says what tokenizer made the data: --tokenizer, a file next to them, or their record."""
    return settings.tokenizer is not None or any(made_with(prefix) is not None for _, prefix in settings.corpora())


def check_assumed_tokenizer(corpora: Sequence[Corpus]) -> None:
    """Raise Gpt2UsageError if token files whose tokenizer nothing names can't be, or hardly are, of GPT-2's.

    Megatron-LM's preprocess_data.py (core 0.12) writes .bin and .idx alone, of any tokenizer. Of GPT-2's they hold ids
    below 50,257, and with --append-eod their documents end with 50256; some programs begin documents with it.
    """
    gpt2 = Tokenizer.gpt2()
    for corpus in corpora:
        why = ""
        if (highest := corpus.highest_id()) >= gpt2.vocabulary_size:
            why = f"they hold the token id {highest:,}, and GPT-2's go up to {gpt2.vocabulary_size - 1:,}"
        elif corpus.share_bounded_by(gpt2.end_of_text) < MOST_DOCUMENTS:
            why = f"their documents do not end with its <|endoftext|>, {gpt2.end_of_text}"
        if why:
            raise Gpt2UsageError(
                f"nothing says what tokenizer made {corpus.prefix}, and GPT-2's it does not seem to be ({why}): give "
                f"the one that did by --tokenizer (`--tokenizer gpt2` if it was that), or copy its tokenizer.json to "
                f"{tokenizer_path(corpus.prefix)}."
            )


MOST_DOCUMENTS = 0.5
"""The share of documents that end with 50256 from which token files are taken for GPT-2's."""


def open_first_weights(settings: TrainSettings, resumed: CheckpointInfo | None) -> ModelWeights | None:
    """The model of --init-from, its tensors not read yet; None without it.

    A run that resumes no longer needs it: then None, too, if it is gone. Raises Gpt2UsageError.
    """
    if not settings.init_from or (resumed is not None and not Path(settings.init_from).exists()):
        return None
    return open_weights(settings.init_from, ReadOptions(heads=settings.heads, tokenizer=settings.tokenizer))


def shape_of_run(
    settings: TrainSettings, resumed: CheckpointInfo | None, first: ModelWeights | None, tokenizer: Tokenizer
) -> tuple[TrainSettings, ModelConfig]:
    """The settings, and the model's shape: with --init-from its model's (the checkpoint's, once that is gone).

    Its sequences are then as long as that model takes them, unless another length is given. The batch is in sequences.
    Raises as `config_of_first_weights` and `sequences_in` do.
    """
    source, length, batch = (first or resumed) if settings.init_from else None, settings.sequence_length, None
    if source is not None and length == GPT2_SEQUENCE_LENGTH:
        length = source.config.sequence_length
    if settings.batch_tokens is not None:
        batch = sequences_in(settings.batch_tokens, length)
    changes: dict[str, Any] = {"sequence_length": length, "global_batch_size": batch or settings.global_batch_size}
    settings = dataclasses.replace(settings, batch_tokens=None, **changes)
    if source is None:
        return settings, settings.model_config(tokenizer.vocabulary_size)
    if first is not None:
        return settings, config_of_first_weights(settings, first, tokenizer)
    return settings, dataclasses.replace(source.config, dropout=settings.dropout)


def config_of_first_weights(settings: TrainSettings, first: ModelWeights, tokenizer: Tokenizer) -> ModelConfig:
    """The shape of the model of --init-from, with the run's dropout.

    Raises Gpt2UsageError if the settings ask for another shape, or the data was made with another tokenizer.
    """
    own = None if first.assumes_tokenizer else first.tokenizer
    if own is not None and own.fingerprint != tokenizer.fingerprint:
        raise Gpt2UsageError(
            f"{settings.init_from} was trained with another tokenizer than the data was made with: "
            + (
                "tokenize the texts with the model's own (`webtext tokenize --tokenizer`)."
                if names_tokenizer(settings)
                else "nothing says what made that, so it is taken for GPT-2's; if it was the model's own, give it by "
                "--tokenizer."
            )
        )
    if own is None and first.config.vocabulary_size != tokenizer.vocabulary_size:
        raise Gpt2UsageError(
            f"{settings.init_from} knows {first.config.vocabulary_size:,} token ids, the data's tokenizer has "
            f"{tokenizer.vocabulary_size:,}: tokenize the texts with the model's own tokenizer."
        )
    config = dataclasses.replace(first.config, dropout=settings.dropout)
    if settings.vocabulary_size not in (None, config.vocabulary_size):
        raise Gpt2UsageError(
            f"{settings.init_from} knows {config.vocabulary_size:,} token ids, and --vocabulary-size is "
            f"{settings.vocabulary_size:,}: leave it out."
        )
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


class SharedIndexCache(IndexCache):
    """A folder of indices on storage that all processes see; in a single process the same as `IndexCache`.

    All processes call `sample_index` together. Any failure of one is raised on all of them. The arrays themselves come
    from the disk, memory-mapped, once per machine.
    """

    def sample_index(self, name: str, build: Callable[[], SampleIndex]) -> SampleIndex:
        """The index `name`, built by the first process if it is not there.

        Raises OSError if it can't be written.
        """
        folder = self.folder / name
        from_first_rank(lambda: self._build_if_missing(folder, build))
        return keep_on_all_ranks(lambda: read_index(folder))

    def keep_blend_state(self, name: str, block: int, taken: list[int]) -> None:
        """Keep what `blend_state` returns, if this is the first process and it can be written."""
        if rank_and_size()[0] == 0:
            super().keep_blend_state(name, block, taken)


def make_batches(
    settings: TrainSettings,
    world: World,
    plan: Plan,
    config: ModelConfig,
    tokenizer: Tokenizer,
    corpora: Sequence[Corpus],
) -> MicroBatches:
    """The maker of micro-batches from samples. Raises Gpt2UsageError if documents matter and can't be separated."""
    end = tokenizer.document_end if tokenizer is not None else None
    separate = settings.documents == "separate"
    flag = "--documents separate" if separate else "--mask-end-of-text" if settings.mask_end_of_text else None
    if flag is not None and (end is None or end >= config.vocabulary_size):
        raise Gpt2UsageError(f"{flag} needs a tokenizer with <|endoftext|>, and the model's ids hold none.")
    if flag is not None:
        for corpus in corpora:
            if not corpus.share_bounded_by(end):
                raise Gpt2UsageError(
                    f"no document of {corpus.prefix} ends with <|endoftext|>, by which {flag} tells documents apart: "
                    "tokenize the text again with `webtext tokenize --append-eod`."
                )
    kind = attention_kind(world.device, plan.precision, is_compiled=plan.compiled) if separate else None
    return MicroBatches(plan.micro_batch, world.device, kind, end, settings.mask_end_of_text)


def describe_run(run: Run) -> list[str]:
    """The lines shown before the first step: the model, its memory, the data, the layout."""
    config, plan, world = run.config, run.plan, run.world
    memory = memory_per_rank(
        config,
        micro_batch=plan.micro_batch,
        accumulation=plan.accumulation,
        on_cpu=world.device.type == "cpu",
        stages_checkpoints=run.saves_in_background,
        **layout_of(run.settings, world.dp_size, world.tp_size, plan.precision, compiled=plan.compiled),
    )
    data_parallel = f"{world.dp_size}" + (f" with {world.replicas} copies" if world.replicas > 1 else "")
    length = f"{run.settings.minutes or 0:g} minutes in steps of {plan.tokens_per_step:,} tokens"
    if plan.steps is not None:
        length = f"{plan.steps:,} steps of {plan.tokens_per_step:,} tokens ({run.epochs(plan.steps):.2f} epochs)"
    held_out = [stream.corpus.prefix for stream in run.validation.streams] if run.validation else []
    trained_on = {stream.corpus.prefix for stream in run.training.streams}
    of_files = f" ({', '.join(held_out)})" if trained_on.isdisjoint(held_out) and held_out else ""
    compiler = missing_for_compilation(world.device) if run.settings.compile is None else ""
    emulated = note_emulated(world.device, plan.precision)
    return [
        size_line(config, memory),
        f"data: {run.training.epoch_tokens:,} tokens to train on ({run.training.epoch_samples:,} sequences per epoch), "
        f"{run.validation.epoch_tokens if run.validation else 0:,} to validate{of_files}",
        f"run: {length} on {world.world_size} process{'es' if world.world_size > 1 else ''} ({world.device.type}, "
        f"{plan.precision}): data parallel {data_parallel}, tensor parallel {world.tp_size}, "
        f"{plan.micro_batch} × {plan.accumulation} sequences each",
        *([str(plan.attention)] if plan.attention is not None else []),
        *(f"warning: {sentence}" for sentence in run.settings.without_effect(plan.steps)),
        *_notes_on_data(run),
        *([f"not compiled, and so slower: {compiler}."] if compiler else []),
        *([f"warning: {emulated}"] if emulated else []),
    ]


def _notes_on_data(run: Run) -> list[str]:
    """What the user should know of the tokenizer, and of documents without an end."""
    corpora = {stream.corpus.prefix: stream.corpus for stream in run.training.streams}
    names, end = ", ".join(corpora), run.tokenizer.document_end
    notes = []
    if run.assumes_tokenizer:
        notes.append(
            f"note: nothing says what tokenizer made {names}; its documents end with {end} as GPT-2's do, so this is "
            "taken for it, and checkpoints hold none: give the one that made it by --tokenizer, here or later, or "
            "--tokenizer gpt2."
        )
    if end is None:
        notes.append(
            f"warning: the tokenizer of {names} has no <|endoftext|>: the model will learn neither to end a text nor "
            "to begin one."
        )
        return notes
    for name, corpus in corpora.items():
        share = corpus.share_bounded_by(end)
        ends = f"no document of {name} ends" if not share else f"only {share:.0%} of the documents of {name} end"
        learns = "neither to end a text nor to begin one" if not share else "to run on from one text into another"
        if share < 1:
            notes.append(
                f"warning: {ends} with <|endoftext|> ({end}): the model will learn {learns}; tokenize with "
                "--append-eod, which `webtext tokenize` does by itself."
            )
    return notes


def build_model(run: Run) -> GPT2:
    """The model on its device, parallelised, with its initial weights, or those of the checkpoint to resume from."""
    change = functools.partial(
        parallelize,
        world=run.world,
        activation_checkpointing=run.settings.activation_checkpointing,
        compiled=run.plan.compiled,
        reshard=run.settings.reshard,
    )
    model = GPT2.empty(run.config, run.world.device, change=change)
    first, resumed = run.first_weights, run.resumed
    if resumed is not None:
        rank, size = rank_and_size()
        options = ReadOptions(rank=rank, world_size=size)
        first = keep_on_all_ranks(lambda: open_weights(resumed.folder, options))
    if first is not None:
        keep_on_all_ranks(lambda: fill(model, first.items(run.config.padded_vocabulary)))
    else:
        fill(
            model,
            model.initial_weights(torch.Generator().manual_seed(mixed_seed(run.settings.seed))),
        )
    model.residual = DTYPES["bf16"] if run.settings.residual == "bf16" else None
    return model.train()
