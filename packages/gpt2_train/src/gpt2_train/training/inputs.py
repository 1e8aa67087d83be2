"""What a run reads before its first step: tokenizer, token files, first weights, prompts and evaluation tasks."""

from __future__ import annotations

import collections
import dataclasses
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpt2_train.checkpoint.info import CheckpointInfo
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.files import CACHE_FOLDER
from gpt2_train.config.settings import GPT2_SEQUENCE_LENGTH, ModelConfig, TrainSettings
from gpt2_train.conversion.weights import ModelWeights
from gpt2_train.data.blending import Blend, blend_split
from gpt2_train.data.corpus import Corpus, recorded_fingerprint
from gpt2_train.data.micro_batches import MicroBatches
from gpt2_train.data.shared_cache import SharedIndexCache
from gpt2_train.distributed.collectives import from_first_rank, on_all_ranks, rank_and_size
from gpt2_train.distributed.mesh import World
from gpt2_train.evaluation.tasks import Task, parse_task
from gpt2_train.inference.generator import Encoder, GenerationRequest
from gpt2_train.inference.model import InferenceModel
from gpt2_train.inference.prompts import prompts_of_file, valid_text
from gpt2_train.inference.sampling import Sampling
from gpt2_train.model.attention import attention_kind
from gpt2_train.training.plan import Plan
from indexed_tokens import Tokenizer, corpus_tokenizer, tokenizer_path


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
        """What tells it from other tasks of its name, the file that it reads among it."""
        return {
            field.name: getattr(self.task, field.name)
            for field in dataclasses.fields(self.task)  # type: ignore[arg-type]
            if field.name == self.task.source or getattr(self.task, field.name) != field.default
        }


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


def read_samples_and_tasks(settings: TrainSettings, model: InferenceModel) -> SamplesAndTasks:
    """What `settings` ask for, with files read and all of it checked against `model`, which needs no weights.

    Raises Gpt2UsageError for a prompt or an input that is missing, damaged, or does not fit the model.
    """
    samples = tuple(map(Encoder(model).encoded, _requests(settings))) if settings.writes_samples else ()
    tasks = tuple(ReadTask(task, task.read(model)) for task in map(parse_task, settings.eval_task))
    return SamplesAndTasks(samples, settings.sample_every or 0, tasks, settings.eval_task_every)


def _requests(settings: TrainSettings) -> Iterator[GenerationRequest]:
    prompts = [valid_text(prompt) for prompt in settings.sample_prompt]
    if settings.sample_prompts is not None:
        prompts += prompts_of_file(settings.sample_prompts)
    sampling = Sampling(settings.sample_temperature, settings.sample_top_k)
    seen: collections.Counter[str] = collections.Counter()
    for prompt in prompts or [""]:
        # A prompt that comes again gets another text.
        yield GenerationRequest(
            prompt,
            tokens=settings.sample_tokens,
            sampling=sampling,
            seed=settings.sample_seed,
            sample=seen[prompt],
        )
        seen[prompt] += 1


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
    from gpt2_train.conversion.formats import ReadOptions, open_weights

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


def blend(
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


def make_batches(
    settings: TrainSettings,
    world: World,
    plan: Plan,
    config: ModelConfig,
    tokenizer: Tokenizer,
    corpora: Sequence[Corpus],
) -> MicroBatches:
    """How samples become micro-batches. Raises Gpt2UsageError if documents matter and can't be told apart."""
    end = tokenizer.document_end if tokenizer is not None else None
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
