"""The task `wikitext`: perplexity of a text that was split into words, per token and per original word.

WikiText is distributed as words with spaces between them ("1 @,@ 000 , he said ."), which GPT-2 never saw: the text is
first put back together. Perplexities of different tokenizers don't compare; per original word they do, and so do bits
per byte. Two programs measure this in two ways, whose published figures don't compare with each other, so both are
told: Megatron-LM reads the whole file as one text and counts the bytes of what was put back together;
lm-evaluation-harness begins each page after `<|endoftext|>`, and counts words and bytes as they are distributed.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from command_kit import Progress, setting
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.evaluation.tasks import Task, figure, perplexity, read_text

if TYPE_CHECKING:
    from gpt2_train.conversion.formats import StoredModel
    from gpt2_train.inference.scorer import Scorer


_REPLACED = (
    ("s '", "s'"),
    (" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."),
    (" : ", ": "), (" ; ", "; "), (" . ", ". "), (" ! ", "! "), (" ? ", "? "), (" , ", ", "),
)  # fmt: skip
_CLOSED_UP = (
    (re.compile(r"\(\s*([^\)]*?)\s*\)"), r"(\1)"),
    (re.compile(r"\[\s*([^\]]*?)\s*\]"), r"[\1]"),
    (re.compile(r"{\s*([^}]*?)\s*}"), r"{\1}"),
    (re.compile(r"\"\s*([^\"]*?)\s*\""), r'"\1"'),
    (re.compile(r"'\s*([^']*?)\s*'"), r"'\1'"),
)
_REPLACED_LAST = (
    ("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" \u00b0 ", "\u00b0"),
    (" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s"),
)  # fmt: skip


def detokenized(text: str) -> str:
    """The text as it was before it was split into words, as far as rules can tell.

    >>> detokenized('He said : " 1 @,@ 000 , ( or so ) . "')
    'He said: "1,000, (or so)."'
    """
    for old, new in _REPLACED:
        text = text.replace(old, new)
    for pattern, replacement in _CLOSED_UP:
        text = pattern.sub(replacement, text)
    for old, new in _REPLACED_LAST:
        text = text.replace(old, new)
    return text


def pages_of(raw: str) -> list[str]:
    """The pages of a text of WikiText, each beginning with the line of its title, as lm-evaluation-harness reads them.

    >>> pages_of(" \\n = A = \\n a \\n = = Part = = \\n b \\n = B = \\n c")
    [' = A = \\n a \\n = = Part = = \\n b ', ' = B = \\n c']
    """
    pages: list[list[str]] = [[]]
    for line in raw.split("\n"):
        title = line.replace("= = =", "===").replace("= =", "==").strip()
        if title.startswith("= ") and title.endswith(" ="):
            if not "".join(pages[-1]).strip():
                pages.pop()  # Blank lines before the first title are on no page.
            pages.append([])
        pages[-1].append(line)
    return ["\n".join(page) for page in pages]


def rolling_windows(tokens: list[int], first: int, length: int) -> Iterator[tuple[list[int], list[int]]]:
    """(context, continuation) pairs that predict each of `tokens` once, in inputs of at most `length`.

    The first has the id `first` before it; each other one the last token of the one before, or, in the last, as many
    as fit.
    """
    before = [first, *tokens]
    for begin in range(0, len(tokens), length):
        end = min(begin + length, len(tokens))
        yield before[max(0, end - length) : begin + 1], tokens[begin:end]


class WikitextInput(NamedTuple):
    """A text of WikiText, read.

    Attributes:
        tokens: int64 (n,), of the text put back together.
        words, size: words as distributed, and bytes of the text put back together, as Megatron-LM counts them.
        windows: (context, continuation) of its pages, as lm-evaluation-harness has them; none without `<|endoftext|>`.
        page_words, page_bytes: of the pages as distributed, as lm-evaluation-harness counts them.
    """

    tokens: npt.NDArray[np.int64]
    words: int
    size: int
    windows: list[tuple[list[int], list[int]]]
    page_words: int
    page_bytes: int


@dataclasses.dataclass(frozen=True)
class Wikitext(Task):
    """Perplexity on WikiText, as raw words. Raises Gpt2UsageError where a setting is out of range."""

    name: ClassVar[str] = "wikitext"
    summary: ClassVar[str] = "perplexity per token and per word, as Megatron-LM and lm-evaluation-harness have it"

    input: str = setting("", "WikiText as it is published, such as wiki.test.tokens", metavar="FILE", positional=True)
    overlap: int = setting(
        0,
        "windows move on by this many tokens and score only these, so that each has the rest of the window before it "
        "(Megatron-LM's --overlapping-eval, 32 there); 0 for windows side by side, which cost a thirtieth",
        ge=0,
    )

    def read(self, model: StoredModel) -> WikitextInput:
        """The text. Raises Gpt2UsageError if it is missing or too short."""
        raw = read_text(self.input, self.name)
        text = detokenized(raw)
        words = len(raw.strip().split(" "))
        tokenizer = model.required_tokenizer
        tokens = np.array(tokenizer.encode(text), np.int64)
        if len(tokens) < 2 or words < 2:
            raise Gpt2UsageError(f"{self.input} holds {len(tokens)} tokens: there is nothing to predict.")
        positions = model.config.sequence_length
        if self.overlap > positions:
            raise Gpt2UsageError(f"--overlap {self.overlap} is more than the model's {positions} positions.")
        pages, end = pages_of(raw), model.end_of_text
        windows = [
            window
            for page in pages
            if end is not None
            for window in rolling_windows(tokenizer.encode(detokenized(page)), end, positions)
        ]
        page_words = sum(len(re.split(r"\s+", page)) for page in pages)
        page_bytes = sum(len(page.encode()) for page in pages)
        return WikitextInput(tokens, words, len(text.encode()), windows, page_words, page_bytes)

    def measure(self, scorer: Scorer, found: WikitextInput) -> dict[str, Any]:
        """Score the text in both ways."""
        tokens, words, size, windows, page_words, page_bytes = found
        with Progress(self.name, "tokens", len(tokens) - 1) as progress:
            if self.overlap:
                total = scorer.overlapping_loss(tokens, self.overlap, progress.advance)
            else:
                total, _ = scorer.text_loss([tokens], progress.advance)
        of_pages = None
        if windows:
            with Progress(f"{self.name} by page", "windows", len(windows)) as progress:
                of_pages = -sum(scored.total for scored in scorer.logprobs_of(windows, progress.advance))
        return {
            "input": self.input,
            "overlap": self.overlap,
            "tokens": len(tokens) - 1,
            "original_words": words - 1,
            "bytes": size,
            "loss": total / (len(tokens) - 1),
            "perplexity": perplexity(total / (len(tokens) - 1)),
            "word_perplexity": perplexity(total / (words - 1)),
            "bits_per_byte": total / math.log(2) / size,
            "lm_eval_words": page_words,
            "lm_eval_bytes": page_bytes,
            "lm_eval_word_perplexity": None if of_pages is None else perplexity(of_pages / page_words),
            "lm_eval_byte_perplexity": None if of_pages is None else perplexity(of_pages / page_bytes),
            "lm_eval_bits_per_byte": None if of_pages is None else of_pages / math.log(2) / page_bytes,
        }

    def describe(self, result: dict[str, Any]) -> list[str]:
        """Perplexities, and bits per byte, and whose they are."""
        how = f"windows that move on by {result['overlap']} tokens" if result["overlap"] else "windows side by side"
        lines = [
            f"wikitext on {result['input']}: {result['tokens']:,} tokens, {result['original_words']:,} original words",
            f"as Megatron-LM measures it: one text, {how}",
            f"  loss             {result['loss']:.4f} nats per token",
            f"  perplexity       {figure(result['perplexity'])} per token",
            f"  word perplexity  {figure(result['word_perplexity'])} per original word",
            f"  bits per byte    {result['bits_per_byte']:.4f} of the text put back together",
        ]
        if result["lm_eval_bits_per_byte"] is None:
            return lines
        return [
            *lines,
            f"as lm-evaluation-harness measures it: page by page, {result['lm_eval_words']:,} words",
            f"  word perplexity  {figure(result['lm_eval_word_perplexity'])} per original word",
            f"  byte perplexity  {figure(result['lm_eval_byte_perplexity'])} per original byte",
            f"  bits per byte    {result['lm_eval_bits_per_byte']:.4f} of the original text",
        ]
