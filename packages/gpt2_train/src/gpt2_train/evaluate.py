"""`gpt2 evaluate`: how well a checkpoint predicts text, as loss, perplexity and bits per byte, beside a baseline.

Every token of the part is scored once (`scoring.py` says how), in one process whatever layout trained the model. A
loss says little by itself, so a unigram model, which knows only how frequent each token is, is scored on the same
tokens: a model that is not clearly better has not learned from context. Losses of different tokenizers do not
compare; bits per byte do. Which documents are held out follows from the split of the training run, which the
checkpoint records.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from command_kit import Progress, add_flags, setting, settings_from
from gpt2_train.config import TrainSettings, parse_split
from gpt2_train.errors import Gpt2UsageError, check_threads, explained_shortage
from indexed_tokens import IndexedTokensError, Tokenizer, prefix_of

if TYPE_CHECKING:
    from gpt2_train.checkpoint import CheckpointInfo
    from gpt2_train.data import Corpus
    from gpt2_train.model import GPT2

EXAMPLE = """\
example:
  gpt2 evaluate --checkpoint runs/first --data corpus_text_document --part valid
  gpt2 evaluate --checkpoint runs/first --data other_text_document --part all --json
"""

HELD_OUT = ("valid", "test")

TOKENS_AT_ONCE = {"cpu": 1024}
"""Tokens scored at once, 8,192 on other devices: the logits of 1,024 take 200 MB for GPT-2's vocabulary."""


@dataclasses.dataclass(frozen=True)
class EvaluateSettings:
    """The settings of `gpt2 evaluate`. Raises Gpt2UsageError where one is out of range."""

    checkpoint: str = setting(
        "", "what to measure: the --output folder of a `gpt2 train`, or one step-... folder in it", metavar="DIR"
    )
    data: str = setting("", "token files to predict, as the prefix of .bin/.idx", metavar="PREFIX")
    part: Literal["all", "train", "valid", "test"] | None = setting(
        None, "which part of the data; valid for data that the model was trained on, else all"
    )
    split: str | None = setting(
        None,
        "shares of the documents for training, validation and test; those of the training run without it",
        metavar="A,B,C",
    )
    max_tokens: int | None = setting(None, "score only this many tokens, from the beginning of the part")
    batch_size: int | None = setting(
        None, "windows scored at once; as many as make 8,192 tokens, or 1,024 on CPU, without it"
    )
    precision: Literal["fp32", "bf16", "fp16"] | None = setting(
        None, "arithmetic of matrix products: bf16 on GPUs that have it, else fp32"
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = setting("auto", "where to compute")
    threads: int | None = setting(None, "CPU threads; as many as cores without it")

    def __post_init__(self) -> None:
        check_threads(self.threads)
        for name in ("max_tokens", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise Gpt2UsageError(f"--{name.replace('_', '-')} is {value}: it should be at least 1.")
        if self.split is not None:
            parse_split(self.split)


SETTINGS = EvaluateSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 evaluate` to `parser`."""
    parser.epilog = EXAMPLE
    parser.add_argument("--config", metavar="FILE.toml", help="read settings from a TOML file; flags win over it")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    add_flags(parser, EvaluateSettings)


def run(arguments: argparse.Namespace) -> int:
    """Measure as the flags ask, print the result, return the exit code. Raises Gpt2Error."""
    settings = settings_from(EvaluateSettings, arguments, command="evaluate", config=arguments.config)
    with explained_shortage("lower --batch-size"):
        result = evaluate(settings)
    print(json.dumps(result) if arguments.json else described(result))
    return 0


def check_tokenizer(info: CheckpointInfo, data: str) -> None:
    """Raise Gpt2UsageError if the record beside the token files names another tokenizer than the checkpoint's.

    `webtext tokenize` writes that record; files of other programs have none.
    """
    try:
        record = json.loads(Path(f"{prefix_of(data)}.json").read_text(encoding="utf-8"))
        made_with = record["tokenizer"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    trained_with = info.tokenizer.get("fingerprint")
    if isinstance(made_with, str) and trained_with is not None and made_with != trained_with:
        raise Gpt2UsageError(
            f"{data} was made with another tokenizer than the model's: tokenize the text again with the tokenizer "
            f"in {info.folder}."
        )


def choose_part(settings: EvaluateSettings, info: CheckpointInfo, corpus: Corpus) -> str:
    """The part asked for; without one, `valid` of the model's own training data and all of any other.

    Says on standard error what makes a result less than it seems: text that the model was trained on.
    """
    digest = corpus.identity()["digest"]
    is_training_data = any(entry.get("digest") == digest for entry in info.data)
    part = settings.part or ("valid" if is_training_data else "all")
    trained_split = info.settings.get("split")
    if is_training_data and part in ("train", "all"):
        print(f"gpt2: the model was trained on {settings.data}: this is no held-out loss.", file=sys.stderr)
    elif is_training_data and settings.split is not None and settings.split != trained_split:
        print(
            f"gpt2: the model was trained on {settings.data} with --split {trained_split}: with {settings.split} the "
            f"{part} part may hold documents that it has seen.",
            file=sys.stderr,
        )
    return part


def evaluate(settings: EvaluateSettings) -> dict[str, Any]:
    """Measure a checkpoint; returns what `--json` prints.

    Raises Gpt2UsageError if checkpoint or data are missing, damaged or don't belong together, or the part is empty.
    """
    import torch

    from gpt2_train.checkpoint import load_model, load_tokenizer, read_info
    from gpt2_train.data import Corpus
    from gpt2_train.device import choose_device, default_precision
    from gpt2_train.scoring import count_documents, count_tokens, part_pieces, part_range, text_bytes, unigram_loss

    if not settings.checkpoint:
        raise Gpt2UsageError("no --checkpoint: give the --output folder of a `gpt2 train`.")
    if not settings.data:
        raise Gpt2UsageError("no --data: give the prefix of .bin/.idx files, as `webtext tokenize` writes them.")
    info = read_info(settings.checkpoint)
    split = settings.split or str(info.settings.get("split", TrainSettings().split))
    corpus = Corpus(settings.data, parse_split(split))
    check_tokenizer(info, settings.data)
    part = choose_part(settings, info, corpus)
    begin, end = part_range(corpus, part)
    size = int(corpus.tokens.lengths[begin:end].sum(dtype="int64"))
    if size < 2:
        raise Gpt2UsageError(
            f"the {part} part of {settings.data} holds {size} tokens ({corpus.tokens.documents:,} documents, split "
            f"{split}), and the first can't be predicted: give it more with --split, or take --part all."
        )
    tokens = min(size - 1, settings.max_tokens or size)

    # What needs no model comes first: data that do not fit it are found before it is loaded.
    vocabulary_size = info.config.vocabulary_size
    targets, first = count_tokens(part_pieces(corpus, part, most=tokens + 1), vocabulary_size, settings.data)
    targets[first] -= 1
    is_fitted = part in HELD_OUT
    fitted = count_tokens(part_pieces(corpus, "train"), vocabulary_size, settings.data)[0] if is_fitted else None
    unigram = unigram_loss(targets, fitted)

    device = choose_device(settings.device)
    tokenizer: Tokenizer | None = load_tokenizer(info.folder) if info.tokenizer else None
    model, _, info = load_model(info.folder, device)
    precision = settings.precision or default_precision(device)
    batch = settings.batch_size or max(1, TOKENS_AT_ONCE.get(device.type, 8192) // info.config.sequence_length)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    started = time.monotonic()
    loss = mean_loss(model, corpus, part, tokens=tokens, batch=batch, precision=precision)
    seconds = time.monotonic() - started
    size_in_bytes = text_bytes(targets, tokenizer, end_of_text(tokenizer)) if tokenizer is not None else None
    return {
        "checkpoint": str(info.folder),
        "step": info.step,
        "data": settings.data,
        "part": part,
        "split": split if part != "all" else None,
        "documents": count_documents(corpus, part),
        "tokens": tokens,
        "of_tokens": size,
        "loss": loss,
        "perplexity": perplexity(loss),
        "bytes": size_in_bytes,
        "bits_per_byte": loss * tokens / math.log(2) / size_in_bytes if size_in_bytes else None,
        "unigram": "fitted on the train part, add-one smoothing" if is_fitted else "entropy of the scored text itself",
        "unigram_loss": unigram,
        "unigram_perplexity": perplexity(unigram),
        "precision": precision,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
    }


def mean_loss(model: GPT2, corpus: Corpus, part: str, *, tokens: int, batch: int, precision: str) -> float:
    """The loss in nats of the first `tokens` predictable tokens of a part, with progress on standard error."""
    from gpt2_train.scoring import part_pieces, total_loss, windows

    pieces = part_pieces(corpus, part, most=tokens + 1)
    with Progress("evaluate", "tokens", tokens) as progress:
        batches = windows(pieces, model.config.sequence_length, batch)
        total, scored = total_loss(model, batches, precision=precision, count=progress.advance)
    return total / scored


def end_of_text(tokenizer: Tokenizer) -> int | None:
    """The id that ends a document; None if the tokenizer has none."""
    try:
        return tokenizer.end_of_text
    except IndexedTokensError:
        return None


def perplexity(loss: float) -> float | None:
    """e to the `loss`; None where that is beyond a floating-point number."""
    return math.exp(loss) if loss < math.log(sys.float_info.max) else None


def described(result: dict[str, Any]) -> str:
    """The result as a person reads it."""

    def shown(value: float | None, digits: int) -> str:
        return "n/a" if value is None else f"{value:,.{digits}f}"

    split = f", split {result['split']}" if result["split"] else ""
    all_but_first = result["tokens"] == result["of_tokens"] - 1
    share = "all but the first" if all_but_first else f"the first of {result['of_tokens']:,}"
    return "\n".join(
        [
            f"{result['checkpoint']} at step {result['step']:,}",
            f"on {result['data']}, part {result['part']}{split}: {result['documents']:,} documents, "
            f"{result['tokens']:,} tokens scored ({share})",
            f"  loss           {result['loss']:.4f} nats a token",
            f"  perplexity     {shown(result['perplexity'], 2)}",
            f"  bits per byte  {shown(result['bits_per_byte'], 4)}",
            f"  unigram loss   {result['unigram_loss']:.4f} nats a token, perplexity "
            f"{shown(result['unigram_perplexity'], 2)} ({result['unigram']})",
        ]
    )
