"""`gpt2 generate`: text from a checkpoint, for prompts from the command line, a file, a pipe, or a conversation.

Without --prompt and --prompts it reads prompts from standard input: from a pipe one per line, and from a terminal as a
loop that writes each continuation as it comes. A prompt is plain text throughout, `<|endoftext|>` and "stop" in it
included; an empty one begins a new document. The same command gives the same text: the random numbers of a sample
follow from --seed, its prompt, and its number among the samples of that prompt. A text longer than the model's
sequence continues with the last half of it as its past.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import itertools
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from command_kit import Progress, add_config_flag, add_flags, setting, settings_from
from command_kit.colours import has_colours
from gpt2_train.config.errors import Gpt2UsageError, explained_out_of_memory
from gpt2_train.inference.model import InferenceModel, InferenceSettings
from gpt2_train.inference.prompts import (
    prompt_loop,
    prompts_of_file,
    prompts_of_lines,
    shared_prompt_loop,
)
from indexed_tokens.tracer import Tracer, shown

if TYPE_CHECKING:
    from gpt2_train.inference.engine import GenerationRequest
    from gpt2_train.inference.generator import GeneratedText, TextGenerator


EXAMPLE = """\
example:
  gpt2 generate --checkpoint runs/quickstart/model --prompt "In the beginning" --tokens 200 --temperature 0.8 --top-k 40
  gpt2 generate --checkpoint runs/quickstart/model   asks for prompts; `stop` on a line of its own, or Ctrl-D, quits
  gpt2 generate --checkpoint runs/quickstart/model --prompt "The graph" --trace runs/quickstart/corpus_text_document
"""

CHOICE = ("temperature", "top_k", "top_p")
"""Settings that --greedy replaces: given as a flag, it overrides the file's."""


@dataclasses.dataclass(frozen=True)
class GenerateSettings(InferenceSettings):
    """The settings of `gpt2 generate`. Raises Gpt2UsageError where two don't fit together."""

    prompt: tuple[str, ...] = setting((), 'prompts, the texts to continue; "" is an empty one, which begins a document')
    prompts: str | None = setting(
        None,
        "file of prompts: one per line, or, if its name ends in .jsonl, JSON strings or objects with a prompt",
        metavar="FILE",
    )
    tokens: int = setting(100, "tokens to write for each", ge=1)
    samples: int = setting(1, "texts to write for each prompt", ge=1)
    temperature: float = setting(
        1.0, "below 1 favours likely tokens, above 1 flattens the distribution; 0 is --greedy", ge=0
    )
    top_k: int = setting(0, "choose among this many most likely tokens only, 0 for all", ge=0)
    top_p: float = setting(1.0, "choose among the most likely tokens that together have this probability", gt=0, le=1)
    greedy: bool = setting(False, "always take the most likely token")
    seed: int = setting(1234, "seed of all choices", ge=0)
    stop: tuple[str, ...] = setting((), "strings that end a text where the first of them begins; they are left out")
    ignore_end: bool = setting(False, "never end a text early: <|endoftext|> is not chosen")
    logprobs: int | None = setting(
        None, "with --json: each token's log-probability, and this many of the most likely tokens with theirs", ge=0
    )
    batch_size: int = setting(8, "texts written at once; the text of one does not depend on the others", ge=1)
    trace: tuple[str, ...] = setting(
        (), "also say what of each text stands in these token files word for word (`webtext index-tokens` first)",
        metavar="PREFIX",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not all(self.stop):
            raise Gpt2UsageError("an empty --stop would end every text before it begins: leave it out.")
        if self.greedy and (self.temperature, self.top_k, self.top_p) != (1.0, 0, 1.0):
            raise Gpt2UsageError(
                "--greedy takes the most likely token: leave out --temperature, --top-k and --top-p, or --greedy."
            )
        if self.samples > 1 and (self.greedy or self.temperature == 0):
            raise Gpt2UsageError(
                f"{self.samples} samples of the most likely text would all be the same: leave out --samples, or "
                "--greedy."
            )


Numbers = collections.defaultdict[str, Iterator[int]]
"""The numbers of a prompt's samples that are still to come, by prompt."""


def requests_for(
    settings: GenerateSettings, prompts: Iterable[str], numbers: Numbers | None = None
) -> list[GenerationRequest]:
    """The texts to write for `prompts`, in order; a prompt that comes again gets further samples, not the same."""
    from gpt2_train.inference.engine import GenerationRequest, valid_text
    from gpt2_train.inference.sampling import Sampling

    numbers = collections.defaultdict(itertools.count) if numbers is None else numbers
    return [
        GenerationRequest(
            prompt,
            tokens=settings.tokens,
            sampling=Sampling(0.0 if settings.greedy else settings.temperature, settings.top_k, settings.top_p),
            seed=settings.seed,
            sample=next(numbers[prompt]),
            ignore_end=settings.ignore_end,
            stop=settings.stop,
            logprobs=settings.logprobs,
        )
        for prompt in map(valid_text, prompts)
        for _ in range(settings.samples)
    ]


def read_prompts(settings: GenerateSettings, stdin: TextIO) -> list[str]:
    """All prompts that the settings name; of standard input if they name none. Raises Gpt2UsageError for none."""
    prompts = list(settings.prompt)
    if settings.prompts is not None:
        prompts += prompts_of_file(settings.prompts)
    elif not prompts:
        prompts = prompts_of_lines(stdin.buffer.read(), "standard input")
        if not prompts:
            raise Gpt2UsageError(
                'no prompts, neither as --prompt nor on standard input: give one; --prompt "" begins a new document.'
            )
    return prompts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 generate` to `parser`."""
    add_config_flag(parser)
    parser.add_argument("--json", action="store_true", help="print all texts as one JSON object at the end")
    add_flags(parser, GenerateSettings)


def run(arguments: argparse.Namespace) -> int:
    """Write as the flags ask; return the exit code. Raises Gpt2Error."""
    overridden = CHOICE if arguments.greedy is True else ()
    settings = settings_from(
        GenerateSettings, arguments, command="generate", config=arguments.config, ignore=overridden
    )
    return carry_out(settings, as_json=arguments.json, debug=arguments.debug)


def carry_out(settings: GenerateSettings, *, as_json: bool, debug: bool = False) -> int:
    """Write as `settings` ask; return the exit code. Raises Gpt2Error."""
    if hasattr(sys.stdout, "reconfigure"):
        # A character that the terminal's encoding lacks is no reason to lose the text.
        sys.stdout.reconfigure(errors="replace")
    if settings.logprobs is not None and not as_json:
        raise Gpt2UsageError("--logprobs are part of what --json prints: add --json, or leave out --logprobs.")
    if as_json and reads_prompts_as_they_come(settings):
        raise Gpt2UsageError("--json needs its prompts beforehand: give --prompt or --prompts, or pipe them in.")
    work = functools.partial(generate, settings, as_json=as_json)
    return settings.in_processes(["generate"], work, as_json=as_json, debug=debug)


def reads_prompts_as_they_come(settings: GenerateSettings) -> bool:
    """Whether prompts are typed one after the other."""
    return not settings.prompt and settings.prompts is None and sys.stdin.isatty()


def generate(settings: GenerateSettings, *, as_json: bool) -> int:
    """Write what `settings` ask for; return the exit code. Raises Gpt2Error."""
    tracer = Tracer(settings.trace) if settings.trace else None
    with (
        explained_out_of_memory("lower --batch-size, or raise --tensor-parallel"),
        settings.opened() as source,
    ):
        is_loop = source.of_first(lambda: reads_prompts_as_they_come(settings))
        prompts = [] if is_loop else source.of_first(lambda: read_prompts(settings, sys.stdin))
        requests = requests_for(settings, prompts)
        generator = make_generator(source, settings, min(settings.batch_size, max(1, len(requests))))
        if is_loop:
            print(f"{source.stored.origin}: reading the model", file=sys.stderr)
            converse(generator, settings, tracer)
        else:
            write_all(generator, requests, tracer, as_json=as_json)
    return 0


def make_generator(source: InferenceModel, settings: GenerateSettings, rows: int) -> TextGenerator:
    """A writer of `rows` texts at once with `source`, as `settings` ask. Raises Gpt2UsageError without a tokenizer."""
    from gpt2_train.inference.generator import TextGenerator

    settings.prepare_to_write(source)
    return TextGenerator(source, rows, arranged=True)


def show_text(text: str) -> None:
    """Print a piece of text at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_one(generator: TextGenerator, request: GenerationRequest, tracer: Tracer | None) -> None:
    """Write a text and print it, after its prompt, as it comes; then what it echoes."""
    text = generator.generate(
        [request], on_begin=lambda: show_text(request.prompt), on_text=lambda _, piece: show_text(piece)
    )[0]
    show_text(echo(tracer, text) + "\n")


def echo(tracer: Tracer | None, text: GeneratedText) -> str:
    """The text again, marked, and the documents that hold its passages: printed after a text with --trace."""
    if tracer is None:
        return ""
    return f"\n\n{shown(tracer.trace(text.text, prompt=text.prompt), colours=has_colours(sys.stdout))}\n"


def converse(generator: TextGenerator, settings: GenerateSettings, tracer: Tracer | None = None) -> None:
    """Continue typed prompts, until the user quits."""
    numbers: Numbers = collections.defaultdict(itertools.count)

    def write(prompt: str) -> None:
        for request in requests_for(settings, [prompt], numbers):
            write_one(generator, request, tracer)
            show_text("\n")

    source = generator.source
    source.read_model()  # Before the first prompt is asked for.
    if source.is_shared:
        shared_prompt_loop(write, source.of_first)
    else:
        prompt_loop(write)


class InOrder:
    """Prints texts in their order: each once it has ended, and all before it have."""

    def __init__(self, count: int, progress: Progress, tracer: Tracer | None) -> None:
        self._count, self._progress, self._tracer = count, progress, tracer
        self._ended: dict[int, GeneratedText] = {}
        self._next = 0

    def add(self, number: int, text: GeneratedText) -> None:
        """Text `number`, counted from 0, has ended."""
        self._ended[number] = text
        with self._progress.hidden():
            while (following := self._ended.pop(self._next, None)) is not None:
                self._next += 1
                repeated = echo(self._tracer, following)
                show_text(f"--- {self._next} of {self._count} ---\n{following.prompt}{following.text}{repeated}\n")


def write_all(
    generator: TextGenerator, requests: Sequence[GenerationRequest], tracer: Tracer | None = None, *, as_json: bool
) -> None:
    """Write and print the texts in the order of `requests`: a single one as it comes, of several each once it ends."""
    started = time.monotonic()
    if len(requests) == 1 and not as_json:
        write_one(generator, requests[0], tracer)
        return
    with Progress("generate", "tokens", sum(request.tokens for request in requests)) as progress:
        printer = InOrder(len(requests), progress, tracer)
        texts = generator.generate(requests, on_tokens=progress.update, on_done=None if as_json else printer.add)
    if as_json:
        found = report(generator.source, texts, time.monotonic() - started)
        if tracer is not None:
            for sample in found["samples"]:
                sample["trace"] = dataclasses.asdict(tracer.trace(sample["text"], prompt=sample["prompt"]))
        print(json.dumps(found, ensure_ascii=False))


def report(source: InferenceModel, texts: Sequence[GeneratedText], seconds: float) -> dict[str, Any]:
    """The object that `--json` prints."""
    tokens = sum(text.tokens for text in texts)
    return {
        "checkpoint": str(source.stored.origin),
        "step": source.stored.step,
        "samples": [sample_of(source, text) for text in texts],
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
    }


def sample_of(source: InferenceModel, text: GeneratedText) -> dict[str, Any]:
    """A text as plain values; ids that are no text of their own as the bytes' replacement, U+FFFD."""
    sample = dataclasses.asdict(text)
    details = sample.pop("details")
    if details is None:
        return sample
    decode = source.stored.required_tokenizer.decode
    for token in details:
        token["most_likely"] = [
            {"token": other, "text": decode([other]), "logprob": logprob} for other, logprob in token["most_likely"]
        ]
    sample["logprobs"] = details
    return sample
