"""What models are measured on: documents that no arm learned from, in sets with a name.

A filter wins on text of its own kind: what it keeps is easier to predict after it. So there are several sets, and the
one that the user wants decides. A document whose tokens stand in an arm's file is left out of every set.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from command_kit import parse_json
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.data.order import Hashes, sequence_hash
from indexed_tokens import IndexedTokens, Tokenizer, corpus_tokenizer, idx_path, prefix_of
from webtext_run.ablation.arms import Arm

FEWEST = 10
"""Documents of a set: fewer say nothing of others."""
LONGEST = 2048
"""Tokens of a document that are scored: a long one must not be most of a set."""
POOL, KEPT = "the pool", "what every arm keeps"

Tokens = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A set of held-out documents.

    Attributes:
        name: what it is called.
        documents: token ids of each, at most `LONGEST`.
        sizes: bytes of the text of each.
        left_out: how many were left out since an arm has them.
    """

    name: str
    documents: list[Tokens]
    sizes: npt.NDArray[np.int64]
    left_out: int

    def digest(self) -> str:
        """Of all tokens: another set has another."""
        found = hashlib.sha256()
        for tokens in self.documents:
            found.update(len(tokens).to_bytes(8, "little") + tokens.astype("<u4").tobytes())
        return found.hexdigest()[:32]


def held_out_sets(
    arms: Sequence[Arm], tokenizer: Tokenizer, *, held_out: str, want: Sequence[str], most: int
) -> list[HeldOut]:
    """The sets, the one that decides first: the wanted ones, the pool, and what every arm keeps of it.

    Args:
        arms: the baseline first.
        tokenizer: of the arms.
        held_out: token files of the pool; without it the baseline's own, if it has some.
        want: folders, files or token files of wanted texts.
        most: tokens of a set.

    Raises Gpt2UsageError if there is no set, one has too few documents, or another tokenizer.
    """
    trained = np.unique(np.concatenate([arm.hashes for arm in arms]))
    sets = [_chosen(name, documents, trained, tokenizer, most) for name, documents in _wanted(want, tokenizer)]
    own = [arm.corpus.held_out.prefix for arm in arms if arm.corpus.held_out is not None]
    has_own = arms[0].corpus.held_out is not None
    pool = held_out or (own[0] if has_own else "")
    if pool:
        sets.append(_chosen(POOL, _of_tokens(pool, tokenizer), trained, tokenizer, most))
    if len(own) == len(arms):
        kept = [{sequence_hash(tokens): tokens for tokens in _of_tokens(prefix, tokenizer)} for prefix in own]
        common = set(kept[0]).intersection(*kept[1:])
        documents = [tokens for key, tokens in kept[0].items() if key in common]
        if len(documents) >= FEWEST and len(documents) < len(kept[0]):
            sets.append(_chosen(KEPT, documents, trained, tokenizer, most))
    names = [entry.name for entry in sets]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Gpt2UsageError(f"two sets of held-out texts are called {twice}: rename one of the folders or files.")
    if not sets:
        raise Gpt2UsageError(
            "nothing to measure on: give --want texts that the corpus is for, or --held-out PREFIX, token files of "
            "documents that no arm learns from."
        )
    return sets


def _wanted(places: Iterable[str], tokenizer: Tokenizer) -> Iterator[tuple[str, Iterable[Tokens]]]:
    for place in places:
        path = Path(place)
        if idx_path(prefix_of(path)).is_file():
            yield path.name.removesuffix("_text_document"), _of_tokens(place, tokenizer)
        else:
            end = [tokenizer.document_end] if tokenizer.document_end is not None else []
            texts = (np.array([*tokenizer.encode(text), *end], np.int64) for text in _texts(path))
            yield path.stem or path.name, texts


def _texts(path: Path) -> Iterator[str]:
    """The texts of a folder or file. Raises Gpt2UsageError where they can't be read."""
    try:
        if path.is_dir():
            files = sorted(found for found in path.rglob("*") if found.suffix in (".txt", ".md", ".jsonl"))
            for file in files:
                yield from _texts(file)
        elif path.suffix == ".jsonl":
            for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
                row: Any = parse_json(line) if line.strip() else None
                if row is not None and not (isinstance(row, dict) and isinstance(row.get("text"), str)):
                    raise Gpt2UsageError(f"--want {path}, line {number:,} is no JSON object with a text.")
                if row is not None:
                    yield row["text"]
        else:
            yield path.read_text(encoding="utf-8")
    except OSError as error:
        raise Gpt2UsageError(
            f"can't read --want {path} ({error.strerror}): give a folder or file of texts, or token files."
        ) from error
    except ValueError as error:
        raise Gpt2UsageError(
            f"--want {path} is not what its name says ({error}): give UTF-8, or JSON lines."
        ) from error


def _of_tokens(prefix: str | Path, tokenizer: Tokenizer) -> Iterator[Tokens]:
    """The documents of token files. Raises Gpt2UsageError if another tokenizer made them."""
    beside = corpus_tokenizer(prefix)
    if beside is not None and beside.fingerprint != tokenizer.fingerprint:
        raise Gpt2UsageError(
            f"{prefix} was made with another tokenizer than the arms: tokenize its texts with theirs "
            "(`webtext tokenize --tokenizer`)."
        )
    return (tokens.astype(np.int64) for tokens in IndexedTokens(prefix))


def _chosen(name: str, documents: Iterable[Tokens], trained: Hashes, tokenizer: Tokenizer, most: int) -> HeldOut:
    """As many documents as make `most` tokens, in the order of their hashes, which is a sample by chance."""
    by_hash = {sequence_hash(tokens): tokens for tokens in documents if len(tokens) > 1}
    keys = np.array(sorted(by_hash), np.uint64)
    new = keys[~np.isin(keys, trained)].tolist()
    taken: list[Tokens] = []
    total = 0
    for key in new:
        tokens = by_hash[key][:LONGEST]
        if total + len(tokens) > most:
            break
        taken.append(tokens)
        total += len(tokens)
    left_out = len(keys) - len(new)
    if len(taken) < FEWEST:
        told = f", of {len(keys):,} ({left_out:,} stand in an arm's file)" if left_out else ""
        raise Gpt2UsageError(
            f"{name} holds {len(taken)} documents to measure on{told}: an interval needs {FEWEST} or more; give more "
            "texts, cut long ones into several files, or raise --held-out-tokens."
        )
    end = tokenizer.document_end
    sizes = [len(tokenizer.decode_bytes(tokens[tokens != end].tolist())) for tokens in taken]
    return HeldOut(name, taken, np.array(sizes, np.int64), left_out)
