"""`gpt2 generate`: text from a checkpoint, for prompts from the command line, a file, a pipe, or a conversation.

Without --prompt and --prompts it reads prompts from standard input: from a pipe one a line, and from a terminal as a
loop that writes each continuation as it comes and ends with `stop` on a line of its own or Ctrl-D. A prompt is plain
text throughout, `<|endoftext|>` and "stop" in it included; an empty one begins a new document. The same command gives
the same text: the random numbers of a sample follow from --seed, its prompt, and its number among the samples of that
prompt. Texts longer than the model's sequence go on with the last half of it as their past.
"""

from __future__ import annotations

import argparse
import codecs
import collections
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import numpy as np

from command_kit import Progress, add_flags, setting, settings_from
from gpt2_train.errors import Gpt2UsageError, check_threads, explained_shortage
from indexed_tokens import IndexedTokensError, Tokenizer

if TYPE_CHECKING:
    from gpt2_train.model import GPT2

EXAMPLE = """\
example:
  gpt2 generate --checkpoint runs/first --prompt "In the beginning" --tokens 200 --temperature 0.8 --top-k 40
  gpt2 generate --checkpoint runs/first            asks for prompts; `stop` on a line of its own, or Ctrl-D, ends
"""

STOP = "stop"
"""What ends the prompt loop, on a line of its own."""

MOST_UNEVEN = 32
"""Tokens by which prompts of one batch may differ: the longer ones are fed one token at a time behind the shortest."""

SMALL_MODEL = 10_000_000
"""Parameters below which one CPU thread writes best: a step is over before several have met, 30 times sooner on cores
that other programs use too."""

CHOICE = ("temperature", "top_k", "top_p")
"""Settings that --greedy stands instead of: given as a flag, it overrides the file's."""


@dataclasses.dataclass(frozen=True)
class GenerateSettings:
    """The settings of `gpt2 generate`. Raises Gpt2UsageError where one is out of range or two don't fit together."""

    checkpoint: str = setting(
        "", "what to write with: the --output folder of a `gpt2 train`, or one step-... folder in it", metavar="DIR"
    )
    prompt: tuple[str, ...] = setting((), 'beginnings of texts; "" for an empty one, which begins a document')
    prompts: str | None = setting(
        None,
        "file of prompts: one a line, or, if it ends in .jsonl, JSON texts or objects with a prompt",
        metavar="FILE",
    )
    tokens: int = setting(100, "tokens to write for each")
    samples: int = setting(1, "texts to write for each prompt")
    temperature: float = setting(1.0, "below 1 the likely gets likelier, above 1 less so; 0 is --greedy")
    top_k: int = setting(0, "choose among this many likeliest tokens only, 0 for all")
    top_p: float = setting(1.0, "choose among the likeliest tokens that together have this probability")
    greedy: bool = setting(False, "always take the likeliest token")
    seed: int = setting(1234, "seed of all choices")
    ignore_end: bool = setting(False, "never end a text early: <|endoftext|> is not chosen")
    batch_size: int = setting(8, "texts written at once; the text of one does not depend on the others")
    device: Literal["auto", "cpu", "cuda", "mps"] = setting("auto", "where to compute")
    threads: int | None = setting(None, "CPU threads; one for a small model, else as many as cores, without it")

    def __post_init__(self) -> None:
        at_least = {
            "tokens": 1, "samples": 1, "batch_size": 1, "top_k": 0, "seed": 0, "temperature": 0,
        }  # fmt: skip
        for name, least in at_least.items():
            value = getattr(self, name)
            if value is not None and not (value >= least and math.isfinite(value)):
                raise Gpt2UsageError(f"--{name.replace('_', '-')} is {value}: it should be at least {least}.")
        check_threads(self.threads)
        if not 0 < self.top_p <= 1:
            raise Gpt2UsageError(f"--top-p is {self.top_p}: it should be above 0 and at most 1.")
        if self.greedy and (self.temperature, self.top_k, self.top_p) != (1.0, 0, 1.0):
            raise Gpt2UsageError(
                "--greedy takes the likeliest token: leave out --temperature, --top-k and --top-p, or --greedy."
            )
        if self.samples > 1 and (self.greedy or self.temperature == 0):
            raise Gpt2UsageError(
                f"{self.samples} samples of the likeliest text would all be the same: leave out --samples, or --greedy."
            )


SETTINGS = GenerateSettings


@dataclasses.dataclass(frozen=True)
class Sample:
    """One text.

    Attributes:
        prompt: how it begins.
        sample: its number among the texts of that prompt, from 0.
        text: what was written behind the prompt.
        tokens: how many tokens were written, a closing `<|endoftext|>` included.
        finished: `end_of_text` if the model ended it, `length` if it has all tokens asked for.
    """

    prompt: str
    sample: int
    text: str
    tokens: int
    finished: Literal["end_of_text", "length"]


@dataclasses.dataclass(frozen=True)
class Row:
    """A text to be written: its prompt, its number among the texts of that prompt, and the prompt's token ids."""

    prompt: str
    sample: int
    ids: list[int]


class TextStream:
    """Token ids to text as they come: the bytes of a character are held back until it is whole.

    What does not make valid UTF-8 becomes U+FFFD, as `Tokenizer.decode` has it: all pieces together are its text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        """The text that `token` completes; empty while a character is unfinished."""
        return self._decoder.decode(self._tokenizer.decode_bytes([token]))

    def close(self) -> str:
        """What is left of an unfinished character."""
        return self._decoder.decode(b"", final=True)


class Author:
    """A model and its tokenizer, writing texts as the settings ask.

    Raises Gpt2UsageError if there is no checkpoint, or it is damaged or carries no tokenizer.
    """

    def __init__(self, settings: GenerateSettings) -> None:
        import torch

        from gpt2_train.checkpoint import load_model, load_tokenizer
        from gpt2_train.device import choose_device
        from gpt2_train.sampling import Sampling

        if not settings.checkpoint:
            raise Gpt2UsageError("no --checkpoint: give the --output folder of a `gpt2 train`.")
        device = choose_device(settings.device)
        self.settings = settings
        self.model: GPT2
        self.model, _, self.info = load_model(settings.checkpoint, device)
        self.tokenizer = load_tokenizer(self.info.folder)
        threads = settings.threads or (1 if self.info.config.parameters < SMALL_MODEL else None)
        if threads is not None:
            torch.set_num_threads(threads)
        # What lies beyond either vocabulary has no text.
        self.vocabulary_size = min(self.info.config.vocabulary_size, self.tokenizer.vocabulary_size)
        self.sampling = Sampling(0.0 if settings.greedy else settings.temperature, settings.top_k, settings.top_p)
        self._written: collections.Counter[str] = collections.Counter()

    @property
    def end(self) -> int | None:
        """The id of `<|endoftext|>`; None if the tokenizer or the model has none."""
        try:
            end = self.tokenizer.end_of_text
        except IndexedTokensError:
            return None
        return end if end < self.vocabulary_size else None

    def rows(self, prompts: Iterable[str]) -> list[Row]:
        """The texts to write for `prompts`, in order; a prompt that comes again gets further samples, not the same.

        Raises Gpt2UsageError for a prompt that the model's vocabulary can't express.
        """
        rows = []
        for prompt in prompts:
            ids = self.tokenizer.encode(prompt)
            if not ids and self.end is None:
                raise Gpt2UsageError(
                    "an empty prompt begins with <|endoftext|>, which this model's vocabulary lacks: give a prompt."
                )
            ids = ids or [self.tokenizer.end_of_text]
            if max(ids) >= self.vocabulary_size:
                raise Gpt2UsageError(
                    f"the prompt {shortened(prompt)!r} has the token id {max(ids)}, but the model's vocabulary has "
                    f"{self.vocabulary_size:,} ids: write it with other words, or train with the tokenizer's own "
                    "vocabulary size."
                )
            for _ in range(self.settings.samples):
                rows.append(Row(prompt, self._written[prompt], ids))
                self._written[prompt] += 1
        return rows

    def write(
        self,
        batch: Sequence[Row],
        show: Callable[[str], object] | None = None,
        count: Callable[[int], object] | None = None,
    ) -> list[Sample]:
        """Write the texts of `batch` at once.

        `show` is given the text as it comes (of the first row: use it with one); `count` the tokens done so far, a
        text that ended early counted as whole. Raises Gpt2Error if the model's output is not finite.
        """
        from gpt2_train.sampling import continue_tokens

        settings, end = self.settings, self.end
        streams = [TextStream(self.tokenizer) for _ in batch]
        texts, written, ended = [""] * len(batch), [0] * len(batch), [False] * len(batch)
        steps = continue_tokens(
            self.model,
            [row.ids for row in batch],
            [np.random.default_rng([settings.seed, row.sample, *row.ids]) for row in batch],
            tokens=settings.tokens,
            sampling=self.sampling,
            vocabulary_size=self.vocabulary_size,
            end=end,
            ignore_end=settings.ignore_end,
        )
        for step in steps:
            for row, token in enumerate(step):
                if token is None:
                    continue
                written[row] += 1
                ended[row] = token == end
                last = ended[row] or written[row] == settings.tokens
                piece = "" if ended[row] else streams[row].add(token)
                piece += streams[row].close() if last else ""
                texts[row] += piece
                if show is not None and row == 0:
                    show(piece)
            if count is not None:
                count(sum(settings.tokens if ended[row] else written[row] for row in range(len(batch))))
        return [
            Sample(row.prompt, row.sample, text, number, "end_of_text" if is_ended else "length")
            for row, text, number, is_ended in zip(batch, texts, written, ended, strict=True)
        ]


def batches(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """`rows` in order, in batches of at most `size` whose prompts are about as long."""
    batch: list[Row] = []
    for row in rows:
        lengths = [len(other.ids) for other in [*batch, row]]
        if batch and (len(batch) == size or max(lengths) - min(lengths) > MOST_UNEVEN):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def shortened(text: str, length: int = 40) -> str:
    """The beginning of a text."""
    return text if len(text) <= length else text[: length - 3] + "..."


def valid_text(text: str) -> str:
    """`text` with U+FFFD for what is no character (lone surrogates, as undecodable bytes of a command line leave)."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def prompts_of_lines(data: bytes, where: str, *, as_json: bool = False) -> list[str]:
    """The prompts in `data`, one a line; lines without text are passed over. Raises Gpt2UsageError naming the line."""
    prompts: list[str] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r")
        except UnicodeDecodeError:
            raise Gpt2UsageError(f"{where}, line {number}, is not valid UTF-8: save it as UTF-8.") from None
        if not text.strip():
            continue
        if as_json:
            try:
                value: Any = json.loads(text)
            except ValueError as error:
                raise Gpt2UsageError(f"{where}, line {number}, is not valid JSON ({error}): correct it.") from None
            value = value.get("prompt") if isinstance(value, dict) else value
            if not isinstance(value, str):
                raise Gpt2UsageError(
                    f'{where}, line {number}, should be a JSON text, or an object with a text under "prompt".'
                )
            text = value
        prompts.append(valid_text(text))
    return prompts


def read_prompts(settings: GenerateSettings, stdin: TextIO) -> list[str]:
    """All prompts that the settings name; of standard input if they name none. Raises Gpt2UsageError for none."""
    prompts = [valid_text(prompt) for prompt in settings.prompt]
    if settings.prompts is not None:
        path = Path(settings.prompts)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise Gpt2UsageError(f"can't read the prompts {path} ({error.strerror}): give another file.") from None
        prompts += prompts_of_lines(data, str(path), as_json=path.suffix == ".jsonl")
        if not prompts:
            raise Gpt2UsageError(f"{path} holds no prompt: write one a line.")
    elif not prompts:
        prompts = prompts_of_lines(stdin.buffer.read(), "standard input")
        if not prompts:
            raise Gpt2UsageError(
                'no prompts, neither as --prompt nor on standard input: give one; --prompt "" begins a new document.'
            )
    return prompts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 generate` to `parser`."""
    parser.epilog = EXAMPLE
    parser.add_argument("--config", metavar="FILE.toml", help="read settings from a TOML file; flags win over it")
    parser.add_argument("--json", action="store_true", help="print all texts as one JSON object at the end")
    add_flags(parser, GenerateSettings)


def run(arguments: argparse.Namespace) -> int:
    """Write as the flags ask; return the exit code. Raises Gpt2Error."""
    overridden = CHOICE if arguments.greedy is True else ()
    settings = settings_from(
        GenerateSettings, arguments, command="generate", config=arguments.config, ignore=overridden
    )
    if hasattr(sys.stdout, "reconfigure"):
        # A character that the terminal's encoding lacks is no reason to lose the text.
        sys.stdout.reconfigure(errors="replace")
    is_loop = not settings.prompt and settings.prompts is None and sys.stdin.isatty()
    if is_loop and arguments.json:
        raise Gpt2UsageError("--json needs its prompts beforehand: give --prompt or --prompts, or pipe them in.")
    prompts = [] if is_loop else read_prompts(settings, sys.stdin)
    with explained_shortage("lower --batch-size"):
        author = Author(settings)
        if is_loop:
            prompt_loop(author)
        else:
            write_all(author, author.rows(prompts), as_json=arguments.json)
    return 0


def show_text(text: str) -> None:
    """Print a piece of text at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_all(author: Author, rows: Sequence[Row], *, as_json: bool) -> None:
    """Write and print the texts of `rows` in their order: a single one as it comes, several batch by batch."""
    started = time.monotonic()
    settings = author.settings
    samples: list[Sample] = []
    total = len(rows) * settings.tokens
    for batch in batches(rows, settings.batch_size):
        if len(rows) == 1 and not as_json:
            show_text(batch[0].prompt)
            samples += author.write(batch, show_text)
            show_text("\n")
            continue
        before = len(samples) * settings.tokens
        with Progress("generate", "tokens", total, done=before) as progress:

            def count(done: int, before: int = before, progress: Progress = progress) -> None:
                progress.update(before + done)

            new = author.write(batch, count=count)
        if not as_json:
            for place, sample in enumerate(new, len(samples) + 1):
                show_text(f"--- {place} of {len(rows)} ---\n{sample.prompt}{sample.text}\n")
        samples += new
    if as_json:
        seconds = time.monotonic() - started
        tokens = sum(sample.tokens for sample in samples)
        report = {
            "checkpoint": str(author.info.folder),
            "step": author.info.step,
            "samples": [dataclasses.asdict(sample) for sample in samples],
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
        }
        print(json.dumps(report, ensure_ascii=False))


def prompt_loop(author: Author) -> None:
    """Ask for prompts and continue each, until `stop` on a line of its own, the end of input, or Ctrl-C at a prompt.

    Ctrl-C while a text is being written ends that text only.
    """
    print(
        f"{author.info.folder}: give a prompt and press Enter; `{STOP}` on a line of its own, or Ctrl-D, ends.",
        file=sys.stderr,
    )
    while True:
        try:
            prompt = valid_text(input("> "))
        except (EOFError, KeyboardInterrupt):
            print()
            return
        except UnicodeDecodeError:
            print("gpt2: that was not valid UTF-8; once more.", file=sys.stderr)
            continue
        if prompt.strip() == STOP:
            return
        try:
            for row in author.rows([prompt]):
                show_text(row.prompt)
                author.write([row], show_text)
                show_text("\n\n")
        except KeyboardInterrupt:
            show_text("\n(ended here; Ctrl-C at the prompt leaves)\n")
        except Gpt2UsageError as error:
            print(f"gpt2: {error}", file=sys.stderr)
