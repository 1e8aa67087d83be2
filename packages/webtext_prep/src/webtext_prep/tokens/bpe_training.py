"""Learning a byte-level BPE from texts, by Hugging Face's trainer.

The trainer counts words, as GPT-2 splits text, and merges the most frequent pair again and again; of equally frequent
ones the pair with the smaller ids. Counts are sums and ids follow from the merges, so that the order of the texts and
the number of threads change nothing. It takes some 5 MB of text per second and core, nearly all of it for counting,
and memory for each different word.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from indexed_tokens import END_OF_TEXT
from indexed_tokens.tokenizer_files import TokenizerTables

PIECE = 2_000
"""Characters of text that the trainer is given at once. Longer words, which are no language, are cut: the time for a
word grows with the square of its length."""


def train_bpe(texts: Iterable[str], vocabulary_size: int, min_frequency: int) -> TokenizerTables:
    """The vocabulary and merges that `texts` give: bytes and merges numbered as GPT-2's are, `<|endoftext|>` the last.

    Args:
        texts: read once.
        vocabulary_size: tokens, bytes and `<|endoftext|>` included; there are fewer where the texts give no more.
        min_frequency: how often a pair must occur to be merged.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    learner = Tokenizer(BPE())
    learner.pre_tokenizer = ByteLevel(add_prefix_space=False)  # GPT-2's split into words, and bytes as characters
    trainer = BpeTrainer(
        vocab_size=vocabulary_size - 1,
        min_frequency=min_frequency,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
    model = json.loads(learner.to_str())["model"]
    vocabulary = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    return TokenizerTables({**vocabulary, END_OF_TEXT: len(vocabulary)}, [(a, b) for a, b in model["merges"]])


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """`text` in parts of at most `size` characters, cut at spaces behind a word: no word is divided by that."""
    start = 0
    while len(text) - start > size:
        end = text.rfind(" ", start, start + size)
        while end > start and text[end - 1].isspace():
            end = text.rfind(" ", start, end)
        if end <= start:
            end = start + size
        yield text[start:end]
        start = end
    yield text[start:]
