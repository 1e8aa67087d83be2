"""The arms of an ablation: token files, what they hold, and what they share with the first of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import TrainSettings
from gpt2_train.data.corpus import Corpus
from gpt2_train.data.order import Hashes, document_keys, sequence_hashes
from gpt2_train.training.setup import check_assumed_tokenizer, names_tokenizer, open_tokenizer
from indexed_tokens import Tokenizer


@dataclasses.dataclass(frozen=True)
class Arm:
    """Token files that models learn from.

    Attributes:
        name: what the user calls them.
        prefix: where they are.
        corpus: the files.
        hashes: of their documents.
    """

    name: str
    prefix: str
    corpus: Corpus
    hashes: Hashes

    @property
    def tokens(self) -> int:
        """Tokens in all."""
        return self.corpus.tokens.total_tokens

    def share_of(self, other: Arm) -> float:
        """The share of the larger one's tokens that is in documents that both have, copies as often as in both."""
        shared = int(self.corpus.tokens.lengths[self._also_in(other)].sum(dtype=np.int64))
        return shared / max(self.tokens, other.tokens)

    def shared_with(self, other: Arm) -> int:
        """The number of its documents that `other` has, too, copies as often as in both."""
        return int(self._also_in(other).sum())

    def _also_in(self, other: Arm) -> npt.NDArray[np.bool_]:
        """The documents of it that `other` has: bool (documents,). The nth copy is the nth there."""
        return np.isin(document_keys(self.hashes, 0), document_keys(other.hashes, 0))


def open_arms(prefixes: Mapping[str, str]) -> tuple[list[Arm], Tokenizer]:
    """The arms, and the tokenizer of all of them.

    Raises Gpt2UsageError where they have different ones, or nothing says what it is and GPT-2's it does not seem to be,
    IndexedTokensError for files that are missing or damaged.
    """
    corpora = {name: Corpus(prefix, (1.0, 0.0, 0.0)) for name, prefix in prefixes.items()}
    settings = TrainSettings(data=tuple(prefixes.values()))
    tokenizer = open_tokenizer(settings)
    if not names_tokenizer(settings):
        check_assumed_tokenizer(list(corpora.values()))
    for name, corpus in corpora.items():
        if corpus.tokens.documents < 2:
            raise Gpt2UsageError(f"the arm {name}, {corpus.prefix}, holds a single document: give more.")
    hashed = [Arm(name, corpus.prefix, corpus, sequence_hashes(corpus.tokens)) for name, corpus in corpora.items()]
    for arm in hashed[1:]:
        if np.array_equal(np.sort(arm.hashes), np.sort(hashed[0].hashes)):
            raise Gpt2UsageError(
                f"the arms {hashed[0].name} and {arm.name} hold the same documents: there is nothing to compare."
            )
    return hashed, tokenizer
