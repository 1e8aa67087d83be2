"""The shape of the model (`ModelConfig`) and the settings of `gpt2 train` (`TrainSettings`).

`ModelConfig` travels with every checkpoint, so that a model is never guessed from the flags of a later command.
`TrainSettings` is at once the flags of `gpt2 train`, its TOML keys and the run's `config.toml`. Its defaults follow
the published recipe for GPT-2 345M (Megatron-LM, 2019: lr 1.5e-4, cosine to 1e-5, 1% warmup, weight decay 0.01,
clip 1.0, dropout 0.1) with a batch small enough for a laptop. A setting marked `identity=False` may differ when a run
resumes; any other difference makes it another run. This module does not import torch.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from command_kit import setting
from command_kit.errors import meant
from command_kit.settings import Removed, flag_name, identity
from gpt2_train.config.errors import Gpt2UsageError

MOST = 2**31 - 1
"""The largest number of a shape: products of two fit into 64 bits, and token ids into 32."""

MOST_THREADS = 1024
"""More CPU threads than this are a typo; torch would crash."""

VOCABULARY_MULTIPLE = 128
"""The vocabulary is padded to a multiple of this, for any tensor-parallel size: 50257 becomes 50304."""

DEFAULT_BATCH = 8
"""Sequences in an optimizer step where the settings name none: few enough for a laptop."""

PRESETS: dict[str, dict[str, int]] = {
    "124M": {"layers": 12, "hidden": 768, "heads": 12},
    "345M": {"layers": 24, "hidden": 1024, "heads": 16},
    "774M": {"layers": 36, "hidden": 1280, "heads": 20},
    "1.5B": {"layers": 48, "hidden": 1600, "heads": 25},
}
"""The four sizes of GPT-2 (Radford et al. 2019, table 2), all of them with sequences of 1024 tokens."""

GPT2_SEQUENCE_LENGTH = 1024


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The shape of one GPT-2, all that is needed to build it.

    Attributes:
        layers: transformer blocks.
        hidden: width of the residual stream.
        heads: attention heads; they divide `hidden`.
        sequence_length: positions, the longest sequence that the model takes.
        vocabulary_size: token ids that the tokenizer knows.
        dropout: probability at which embeddings, attention weights and residual branches are dropped in training.

    Raises Gpt2UsageError for a shape that can't be built.
    """

    layers: int
    hidden: int
    heads: int
    sequence_length: int = GPT2_SEQUENCE_LENGTH
    vocabulary_size: int = 50257
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "sequence_length", "vocabulary_size"):
            value = getattr(self, name)
            if type(value) is not int or value > MOST:  # as a damaged file may have it
                raise Gpt2UsageError(f"{name} is {value!r:.40}: it should be a whole number, at most {MOST:,}.")
            if value < 1:
                raise Gpt2UsageError(f"{name} is {value}: it should be at least 1.")
        if self.hidden % self.heads:
            raise Gpt2UsageError(
                f"a hidden size of {self.hidden} can't be shared among {self.heads} heads: "
                f"choose a number of heads that divides {self.hidden}."
            )
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise Gpt2UsageError(f"dropout is {self.dropout}: it should be at least 0 and less than 1.")

    @classmethod
    def preset(cls, name: str, **changes: Any) -> ModelConfig:
        """One of GPT-2's sizes (`124M`, `345M`, `774M`, `1.5B`), with `changes` to other fields.

        Raises Gpt2UsageError for an unknown name.
        """
        if name not in PRESETS:
            raise Gpt2UsageError(f"no model {name}: {meant(name, PRESETS)}known are {', '.join(PRESETS)}.")
        return cls(**{**PRESETS[name], **changes})

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def padded_vocabulary(self) -> int:
        """Rows of the embedding: `vocabulary_size` padded to a multiple of 128; the added ids never win."""
        return -(-self.vocabulary_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def parameters(self) -> int:
        """Parameters in all, padding rows included: l(12h² + 13h) + 2h + Vh + sh (354,871,296 for 345M)."""
        block = 12 * self.hidden**2 + 13 * self.hidden
        return (
            self.layers * block
            + 2 * self.hidden
            + self.padded_vocabulary * self.hidden
            + self.sequence_length * self.hidden
        )

    @property
    def flops_per_token(self) -> float:
        """Forward and backward FLOPs for one token: 6N + 12·l·h·s (Chowdhery et al. 2022, appendix B)."""
        return 6.0 * self.parameters + 12.0 * self.layers * self.hidden * self.sequence_length

    def as_table(self) -> dict[str, Any]:
        """Plain values, as a checkpoint stores them."""
        return dataclasses.asdict(self)


_NOTHING = object()
_ADDED_LATER = {"documents": "packed", "mask_end_of_text": False, "optimizer": "adamw"}
_ADDED_LATER |= {"order": "shuffled", "reordered": 0.0, "residual": "fp32"}

_data = functools.partial(setting, group="data")
_model = functools.partial(setting, group="model")
_length = functools.partial(setting, group="length of the run", identity=False)
_optimizer = functools.partial(setting, group="optimisation")
_speed = functools.partial(setting, group="speed, memory and layout (may change when a run resumes)", identity=False)
_observed = functools.partial(
    setting, group="samples and evaluation tasks during training (may change when a run resumes)", identity=False
)
_run = functools.partial(setting, group="run", identity=False)


def parse_split(split: str, flag: str = "--split") -> tuple[float, float, float]:
    """The shares of training, validation and test in a text such as `949,50,1`.

    Raises Gpt2UsageError, which calls it `flag`, where it is malformed.
    """
    try:
        weights = [float(part) for part in split.split(",")]
    except ValueError:
        weights = []
    good = 1 <= len(weights) <= 3 and all(math.isfinite(w) and w >= 0 for w in weights)
    if not good or weights[0] <= 0:
        raise Gpt2UsageError(
            f"{flag} {split!r} should be up to three shares, for training, validation and test, "
            "such as 949,50,1, the first of them above 0."
        )
    padded = [*weights, 0.0, 0.0]
    return padded[0], padded[1], padded[2]


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """The data that a run learns from, and their order."""

    data: tuple[str, ...] = _data(
        (),
        "token files to learn from, as prefixes of .bin/.idx; several are blended in the proportion of their "
        "training tokens, or by weights given as 0.7:PREFIX",
        metavar="PREFIX",
    )
    split: str = _data("949,50,1", "shares of the documents for training, validation and test", metavar="A,B,C")
    tokenizer: str | None = _data(
        None,
        "tokenizer that made data which has none next to it: a folder with vocab.json and merges.txt, or a "
        "tokenizer.json of byte-level BPE; without it the one next to the data, else GPT-2's",
        metavar="DIR|FILE",
        identity=False,
    )
    documents: Literal["packed", "separate"] = _data(
        "packed",
        "packed: each token attends to all before it in its sequence; separate: to its own document alone, "
        "with positions from 0 (needs --dropout 0)",
    )
    mask_end_of_text: bool = _data(
        False, "leave predictions after <|endoftext|>, of how a document begins, out of the loss"
    )
    order: Literal["shuffled", "hashed"] = _data(
        "shuffled",
        "order of the data: shuffled by its places, as in Megatron-LM, or by hashes of what documents hold, so that "
        "runs of as many steps on corpora that share documents read these in the same batches (`gpt2 ablate`)",
    )
    reordered: float = _data(
        0.0, "with --order hashed, share of the samples that come in other batches than these", ge=0, le=1
    )
    seed: int = _data(1234, "seed of initial weights, order of the data and dropout", ge=0, lt=2**31)

    def split_weights(self) -> tuple[float, float, float]:
        """The shares of training, validation and test in `split`. Raises Gpt2UsageError where it is malformed."""
        return parse_split(self.split)

    def corpora(self) -> list[tuple[float | None, str]]:
        """(weight or None, prefix) of each entry of `data`.

        Raises Gpt2UsageError if there is none, or if some have weights and others not.
        """
        if not self.data:
            raise Gpt2UsageError("no --data: give the prefix of .bin/.idx files, as `webtext tokenize` writes them.")
        found: list[tuple[float | None, str]] = []
        for entry in self.data:
            if not entry:
                raise Gpt2UsageError("--data holds an empty prefix: give that of .bin/.idx files.")
            head, colon, rest = entry.partition(":")
            try:
                weight = float(head) if colon and rest else None
            except ValueError:
                weight = None
            if weight is not None and not (weight > 0 and math.isfinite(weight)):
                raise Gpt2UsageError(f"--data {entry}: the weight should be above 0.")
            found.append((weight, rest if weight is not None else entry))
        if len({weight is None for weight, _ in found}) > 1:
            raise Gpt2UsageError("--data gives weights to some files and not to others: give all of them one, or none.")
        return found


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """The model's shape as flags and TOML keys: one of GPT-2's sizes, or its numbers."""

    model: Literal["124M", "345M", "774M", "1.5B"] | None = _model(
        None, "one of GPT-2's sizes; 124M unless --layers, --hidden and --heads are given"
    )
    layers: int | None = _model(None, "transformer blocks, instead of the preset's")
    hidden: int | None = _model(None, "width of the model, instead of the preset's")
    heads: int | None = _model(None, "attention heads, instead of the preset's")
    sequence_length: int = _model(GPT2_SEQUENCE_LENGTH, "tokens in a training sequence")
    vocabulary_size: int | None = _model(
        None, "token ids that the model knows; the tokenizer's number without it (50257 for GPT-2)"
    )
    dropout: float = _model(0.1, "dropout probability")

    @property
    def names_a_size(self) -> bool:
        """Whether a size was asked for, as a preset or in numbers; 124M is taken if not."""
        return any(value is not None for value in (self.model, self.layers, self.hidden, self.heads))

    def check_model(self) -> None:
        """Raise Gpt2UsageError if the shape is given twice, as a preset and in numbers."""
        if self.model is not None and any(number is not None for number in (self.layers, self.hidden, self.heads)):
            raise Gpt2UsageError("--model already sets layers, hidden and heads: give the preset or the numbers.")

    def model_config(self, vocabulary_size: int = 50257) -> ModelConfig:
        """The model that the settings ask for; `vocabulary_size` is the tokenizer's, which the flag overrides.

        Raises Gpt2UsageError if only some of layers, hidden and heads are given, or they don't fit together.
        """
        rest: dict[str, Any] = {
            "sequence_length": self.sequence_length,
            "vocabulary_size": vocabulary_size if self.vocabulary_size is None else self.vocabulary_size,
            "dropout": self.dropout,
        }
        numbers = {"layers": self.layers, "hidden": self.hidden, "heads": self.heads}
        if all(value is None for value in numbers.values()):
            return ModelConfig.preset(self.model or "124M", **rest)
        missing = [f"--{name}" for name, value in numbers.items() if value is None]
        if missing:
            raise Gpt2UsageError(
                f"{' and '.join(missing)} missing: give --layers, --hidden and --heads together, or --model."
            )
        return ModelConfig(**{name: int(value) for name, value in numbers.items() if value is not None}, **rest)


def given(settings: Any) -> set[str]:
    """The names of the settings, a dataclass's, that are not at their defaults."""
    return {field.name for field in dataclasses.fields(settings) if getattr(settings, field.name) != field.default}


def sequences_of(settings: Any) -> int | None:
    """The sequences in an optimizer step, by --batch-tokens or --global-batch-size; None if neither is given.

    Raises Gpt2UsageError if the two disagree, or as `sequences_in` does.
    """
    tokens, batch = settings.batch_tokens, settings.global_batch_size
    if tokens is None:
        return None if batch is None else int(batch)
    found = sequences_in(tokens, settings.sequence_length)
    if batch not in (None, found):
        raise Gpt2UsageError(
            f"--batch-tokens {tokens:,} is a batch of {found:,} sequences, and --global-batch-size is {batch:,}: give "
            "one of them."
        )
    return found


def sequences_in(tokens: int, length: int) -> int:
    """The sequences of `length` in a batch of `tokens`. Raises Gpt2UsageError if they are no whole number."""
    if tokens % length:
        raise Gpt2UsageError(f"--batch-tokens {tokens:,} is no multiple of --sequence-length {length:,}.")
    return tokens // length


GONE = {
    "average_tail": Removed("the last weights of --schedule wsd are better than a mean of them", unused=0.0),
    "cautious_decay": Removed("--weight-decay decays all weights, with the same loss", unused=False),
    "sample_prompts": Removed("give each text by --sample-prompt, or the file to `gpt2 generate --prompts`"),
    "sample_seed": Removed("samples differ by their prompts; `gpt2 generate --seed` writes others", unused=1234),
    "sequence_parallel": Removed("--tensor-parallel and --activation-checkpointing save memory", unused=False),
    "log_to trackio": Removed("send to wandb or tensorboard"),
    "threads auto": Removed("leave it out, and each core of the machine has a thread"),
    "eval_batches": Removed("give --eval-tokens: the validation loss no longer depends on the batch", unused=10),
    "init_residual": Removed("matrices begin as GPT-2's do, with the same loss", unused="scaled"),
}
"""Settings of a run that there are no more."""


@dataclasses.dataclass(frozen=True)
class TrainSettings(ModelSettings, DataSettings):
    """The settings of `gpt2 train`. Raises Gpt2UsageError where two don't fit together."""

    REMOVED: ClassVar[Mapping[str, Removed]] = GONE

    init_from: str | None = _model(
        None,
        "begin with the weights of this model instead of random ones: a checkpoint, a Hugging Face GPT-2 folder or its "
        "name on their hub, or a checkpoint of Megatron-LM; its shape and tokenizer are taken, too",
        metavar="DIR",
        identity=False,
    )

    steps: int | None = _length(None, "train for this many optimizer steps", ge=1)
    epochs: float | None = _length(
        None, "train for this many passes over the training split (1 if no length is given)", gt=0
    )
    tokens: int | None = _length(None, "train for this many tokens", ge=1)
    minutes: float | None = _length(
        None,
        "train for this long, validation and the last save included, samples and tasks not: the learning rate falls by "
        "the clock, so that a second run takes other steps and ends with other weights; one that resumes repeats the "
        "steps that it had taken, and has the rest of its time",
        gt=0,
    )

    global_batch_size: int = _optimizer(
        None, "sequences in one optimizer step, over all processes; 8 without it and --batch-tokens", ge=1
    )
    batch_tokens: int | None = _optimizer(
        None, "tokens in one optimizer step, instead of --global-batch-size: a multiple of --sequence-length", ge=1
    )
    optimizer: Literal["adamw", "muon"] = _optimizer(
        "adamw",
        "adamw, or muon for the matrices of the blocks and adamw for the rest; learning rates and weight decay of one "
        "suit the other",
    )
    lr: float = _optimizer(1.5e-4, "peak learning rate", gt=0)
    min_lr: float = _optimizer(1e-5, "learning rate at the end of the decay", ge=0)
    warmup: float = _optimizer(0.01, "warm-up of the learning rate: a fraction of the run if below 1, else steps", ge=0)
    schedule: Literal["cosine", "linear", "constant", "wsd"] = _optimizer(
        "cosine", "learning-rate schedule after the warm-up (wsd: constant, then linear decay)"
    )
    cooldown: float = _optimizer(0.2, "fraction of the run over which wsd decays", gt=0, le=1)
    weight_decay: float = _optimizer(0.01, "weight decay of matrices (not of biases and norms)", ge=0)
    beta1: float = _optimizer(0.9, "Adam's decay of the mean gradient", ge=0, lt=1)
    beta2: float = _optimizer(0.999, "Adam's decay of the squared gradient", ge=0, lt=1)
    clip: float = _optimizer(1.0, "largest norm of the gradient, 0 for no limit", ge=0)
    precision: Literal["fp32", "bf16", "fp16", "auto"] | None = _optimizer(
        None,
        "autocast precision of matrix products: bf16 on GPUs that have it, else fp32; auto takes bf16 on CPUs "
        "that are faster in it, too",
    )
    residual: Literal["fp32", "bf16"] = _optimizer(
        "fp32",
        "precision of the residual stream; bf16, with --precision bf16, moves a third fewer bytes in norms and keeps "
        "fewer, and rounds the sum of all blocks' outputs after each",
    )

    micro_batch_size: int | Literal["auto"] = _speed(
        "auto",
        "sequences that one process takes at once; auto takes the largest that divides the batch: on CUDA the "
        "largest that fits the memory, up to 32,768 tokens, on CPU up to 2048 tokens, on MPS up to 8 sequences",
        ge=1,
    )
    activation_checkpointing: Literal["none", "full", "selective"] = _speed(
        "none",
        "recompute activations in the backward pass: full keeps one per block, selective keeps the matrix products",
    )
    tensor_parallel: int = _speed(1, "tensor-parallel size: processes that share each matrix", ge=1)
    data_parallel: int | None = _speed(
        None,
        "data-parallel size: processes that share each batch; without it as many of the GPUs as divide the global "
        "batch, one process on CPU",
        ge=1,
    )
    data_parallel_replicate: int = _speed(
        1,
        "copies of the model's state among the data-parallel processes: each group of --data-parallel divided by this "
        "has all of it, and groups exchange gradients alone; as many as there are machines keeps the rest inside them",
        ge=1,
    )
    reshard: bool = _speed(
        False,
        "with data parallelism, gather each block's parameters when it is computed and drop them after it, forward and "
        "backward, instead of keeping all of them for a step: less memory, more communication",
    )
    distributed_timeout: float | None = _speed(
        None,
        "minutes that a process waits for others, at the start or in an exchange, before the run ends; 30 without it",
        gt=0,
        metavar="MINUTES",
    )
    compile: Literal["blocks"] | bool | None = _speed(
        None,
        "compile each block with torch.compile; on CUDA this is done without asking; a resumed run repeats an unbroken "
        "one bit for bit only if both are compiled alike",
    )
    attention: Literal["auto", "cudnn", "flash", "efficient", "math"] = _speed(
        "auto",
        "kernel that computes attention on CUDA; auto takes the first that can, in an order for each kind of GPU; what "
        "it computes is compared once with plain operations",
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = _speed("auto", "where to compute")
    threads: int | None = _speed(
        None,
        "CPU threads of each process; the machine's cores shared among them without it, each core once that runs two "
        "threads",
        ge=1,
        le=MOST_THREADS,
    )

    sample_every: int | None = _observed(
        None,
        "let the model write samples before the first step, every N steps, and after the last; 0 for before and after "
        "only, as if only prompts are given",
        ge=0,
    )
    sample_prompt: tuple[str, ...] = _observed(
        (),
        'prompts of the samples, the texts to continue; "" is an empty one, which begins a document, and is taken if '
        "no prompt is given",
    )
    sample_tokens: int = _observed(100, "tokens of each sample", ge=1)
    sample_temperature: float = _observed(
        1.0, "below 1 favours likely tokens, above 1 flattens the distribution; 0 takes the most likely", ge=0
    )
    sample_top_k: int = _observed(0, "choose among this many most likely tokens only, 0 for all", ge=0)
    eval_task: tuple[str, ...] = _observed(
        (),
        "evaluation tasks to run during training, with settings and file as in lambada:FILE.jsonl, "
        "wikitext,overlap=32:FILE or held-out-loss,split=all:PREFIX; `gpt2 evaluate --help` lists them",
        metavar="NAME:FILE",
    )
    eval_task_every: int = _observed(
        0,
        "steps between runs of the evaluation tasks, which also run before the first step and after the last; 0 for "
        "these two only",
        ge=0,
    )

    output: str = _run("", "folder of the run; the same command on it resumes", metavar="DIR")
    log_every: int = _run(10, "steps between logged lines", ge=1)
    log_to: tuple[str, ...] = _run((), "also send the logged rows to these; several may be given, separated by commas")
    eval_every: int = _run(1000, "steps between evaluations, 0 for one at the end only", ge=0)
    eval_tokens: int = _run(
        81_920, "validation tokens of an evaluation, the same ones whatever the batch, at most all", ge=1
    )
    save_every: int = _run(1000, "steps between checkpoints, 0 for one at the end only", ge=0)
    keep_checkpoints: int = _run(3, "newest checkpoints to keep, 0 for all", ge=0)
    async_checkpoint: bool = _run(
        True,
        "write checkpoints while training goes on, from a copy in host memory (12 bytes for each parameter of a "
        "process); the last one is always waited for",
    )
    save: bool = _run(True, "save checkpoints; without them (for a benchmark) nothing can be resumed")
    exit_zero_on_stop: bool = _run(
        False,
        "exit with 0, not 128 plus its number, after a signal stopped the run and it was saved: for launchers that "
        "start failed jobs again (torchrun --max-restarts)",
    )

    @property
    def eval_sequences(self) -> int:
        """Sequences of an evaluation, if the validation split has as many."""
        return max(1, self.eval_tokens // self.sequence_length)

    def __post_init__(self) -> None:
        self.check_model()
        self.split_weights()
        # With --init-from the length may still become the model's (`shape_of_run`).
        about = max(1, self.batch_tokens // self.sequence_length) if self.batch_tokens and self.init_from else None
        batch = about or sequences_of(self)
        object.__setattr__(self, "_has_batch", batch is not None)
        object.__setattr__(self, "global_batch_size", batch or DEFAULT_BATCH)
        if sum(value is not None for value in (self.steps, self.epochs, self.tokens, self.minutes)) > 1:
            raise Gpt2UsageError(
                "the run's length is given twice: give one of --steps, --epochs, --tokens and --minutes."
            )
        if self.documents == "separate" and self.dropout:
            raise Gpt2UsageError(
                f"--documents separate has no dropout of attention, and dropout is {self.dropout}: give --dropout 0."
            )
        if self.min_lr > self.lr:
            raise Gpt2UsageError(f"--min-lr {self.min_lr} is above --lr {self.lr}: the rate would rise; lower it.")
        if self.order == "hashed" and (self.steps is None or len(self.data) > 1):
            raise Gpt2UsageError("--order hashed spreads documents over the run: give its --steps, and one --data.")
        if self.reordered and self.order != "hashed":
            raise Gpt2UsageError("--reordered is for --order hashed: add that, or leave it out.")
        self._check_observed()

    def without_effect(self, steps: int | None) -> list[str]:
        """A sentence for each setting that was given and that the others leave without an effect.

        Args:
            steps: of the run, where they are known.
        """
        asked = given(self)
        return [
            f"{flag_name(name)} {getattr(self, name)} has no effect: {why}."
            for names, why, has_effect in _EFFECTS
            for name in names
            if name in asked and not has_effect(self, steps)
        ]

    @property
    def has_batch(self) -> bool:
        """Whether somebody chose the batch: it is no default."""
        return bool(vars(self)["_has_batch"])

    @property
    def writes_samples(self) -> bool:
        """Whether the model writes samples during training."""
        return self.sample_every is not None or bool(self.sample_prompt)

    def _check_observed(self) -> None:
        """Raise Gpt2UsageError for a setting of samples or evaluation tasks where there are none."""
        of_samples = sorted(name for name in given(self) if name.startswith("sample_"))
        if of_samples and not self.writes_samples:
            raise Gpt2UsageError(
                f"--{of_samples[0].replace('_', '-')} is a setting of samples, and there are none: also give "
                "--sample-every or --sample-prompt."
            )
        if self.eval_task_every and not self.eval_task:
            raise Gpt2UsageError("--eval-task-every, but no --eval-task: name a task, such as lambada:FILE.jsonl.")

    def identity(self) -> dict[str, Any]:
        """The settings that decide the weights, as plain values: a run resumes only while they are the same."""
        table = identity(self)
        for name in ("model", "layers", "hidden", "heads", "vocabulary_size"):
            table.pop(name, None)
        if self.order == "hashed":
            table["steps"] = self.steps  # all batches follow from it
        # Runs that were begun before there was a choice took the default, and do not record it.
        return {name: value for name, value in table.items() if _ADDED_LATER.get(name, _NOTHING) != value}


_EFFECTS: tuple[tuple[tuple[str, ...], str, Callable[[TrainSettings, int | None], bool]], ...] = (
    (("cooldown",), "it is for --schedule wsd", lambda run, _: run.schedule == "wsd"),
    (("min_lr",), "--schedule constant stays at --lr", lambda run, _: run.schedule != "constant"),
    (
        ("save_every", "keep_checkpoints", "async_checkpoint"),
        "--no-save writes none",
        lambda run, _: run.save,
    ),
    (
        ("sample_top_k",),
        "--sample-temperature 0 takes the most likely token",
        lambda run, _: run.sample_temperature > 0,
    ),
    (
        ("warmup",),
        "the run has fewer steps, and never reaches --lr",
        lambda run, steps: run.warmup < 1 or steps is None or run.warmup <= steps,
    ),
)
"""Settings, why they may have no effect, and whether they have one in a run of so many steps."""

TOKENIZER_HELP = (
    "tokenizer to use instead of the checkpoint's own: a folder with vocab.json and merges.txt, a tokenizer.json of "
    "byte-level BPE, or the name gpt2"
)
