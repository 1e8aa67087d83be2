"""The documents that models are measured on: that no arm learned from, in sets with a name.

A filter wins on text of its own kind: what it keeps is easier to predict after it. So there are several sets, and the
one that the user wants decides. A document that stands in an arm's file is left out of every set, also if only most of
its passages do: words are compared, whatever their case and what is between them (`webtext_prep.text.fingerprints`).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from command_kit import parse_json
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.data.order import sequence_hash
from indexed_tokens import IndexedTokens, Tokenizer, corpus_tokenizer, idx_path, prefix_of
from webtext_prep.documents.document import in_batches
from webtext_prep.text.fingerprints import Shingling, shingle_sets
from webtext_run.ablation.arms import Arm

FEWEST = 10
"""Documents of a set: fewer say nothing of others."""
LONGEST = 2048
"""Tokens of a document that are scored: a long one must not be most of a set."""
PASSAGE = Shingling("word", 13)
"""Words of a passage: as long as those that `webtext decontaminate` cuts out; a shorter text counts whole."""
BATCH = 1 << 22
"""Characters of the arms that are looked through at a time."""
KNOWN = 0.5
"""Share of a document's passages that an arm may have: a page's header is in many, a piece of a document altogether."""
POOL, KEPT = "the pool", "what every arm keeps"

Tokens = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A set of held-out documents.

    Attributes:
        name: what it is called.
        documents: token ids of each, at most `LONGEST`.
        sizes: bytes of the text of each.
        left_out: how many were left out since an arm has them, whole or most of their passages.
    """

    name: str
    documents: list[Tokens]
    sizes: npt.NDArray[np.int64]
    left_out: int

    def digest(self) -> str:
        """A digest of all tokens: another set has another."""
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
    found = [(name, _by_hash(documents)) for name, documents in _wanted(want, tokenizer)]
    own = [arm.corpus.held_out.prefix for arm in arms if arm.corpus.held_out is not None]
    has_own = arms[0].corpus.held_out is not None
    pool = held_out or (own[0] if has_own else "")
    if pool:
        found.append((POOL, _by_hash(_of_tokens(pool, tokenizer))))
    if len(own) == len(arms):
        kept = [_by_hash(_of_tokens(prefix, tokenizer)) for prefix in own]
        common = {key: tokens for key, tokens in kept[0].items() if all(key in other for other in kept[1:])}
        if FEWEST <= len(common) < len(kept[0]):
            found.append((KEPT, common))
    names = [name for name, _ in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Gpt2UsageError(f"two sets of held-out texts are called {twice}: rename one of the folders or files.")
    if not found:
        raise Gpt2UsageError(
            "nothing to measure on: give --want texts that the corpus is for, or --held-out PREFIX, token files of "
            "documents that no arm learns from."
        )
    known = known_to(arms, tokenizer, {key: tokens for _, documents in found for key, tokens in documents.items()})
    return [_chosen(name, documents, known, tokenizer, most) for name, documents in found]


def known_to(arms: Sequence[Arm], tokenizer: Tokenizer, documents: Mapping[int, Tokens]) -> set[int]:
    """The keys of the documents that stand in an arm's file, or `KNOWN` of whose passages do, of what is scored.

    Costs a pass over the text of all different documents of the arms.

    Args:
        arms: all of them.
        tokenizer: of the arms.
        documents: token ids by their hashes.

    Raises Gpt2UsageError for tokens that the tokenizer does not have.
    """
    texts = [_text(tokens[:LONGEST], tokenizer) for tokens in documents.values()]
    passages, ends = shingle_sets(texts, PASSAGE)
    different = np.unique(passages)
    seen = np.zeros(len(different), np.bool_)
    for batch in in_batches(_texts_of(arms, tokenizer), BATCH, BATCH, len):
        read, _ = shingle_sets(batch, PASSAGE)
        seen |= np.isin(different, read)
    is_seen = seen[np.searchsorted(different, passages)]
    trained = set(np.concatenate([arm.hashes for arm in arms]).tolist())
    return {
        key
        for key, own in zip(documents, np.split(is_seen, ends[:-1]), strict=True)
        if key in trained or (len(own) and own.mean() >= KNOWN)
    }


def _texts_of(arms: Sequence[Arm], tokenizer: Tokenizer) -> Iterator[str]:
    """The text of every different document of the arms."""
    read: set[int] = set()
    for arm in arms:
        for number, key in enumerate(arm.hashes.tolist()):
            if key not in read:
                read.add(key)
                try:
                    yield _text(arm.corpus.tokens[number], tokenizer)
                except ValueError as error:
                    raise Gpt2UsageError(
                        f"the arm {arm.name}, {arm.prefix}, was not made with the tokenizer beside it: {error}"
                    ) from error


def _text(tokens: npt.NDArray[np.integer], tokenizer: Tokenizer) -> str:
    return tokenizer.decode(tokens[tokens != tokenizer.document_end].tolist())


def _by_hash(documents: Iterable[Tokens]) -> dict[int, Tokens]:
    return {sequence_hash(tokens): tokens for tokens in documents if len(tokens) > 1}


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


def _chosen(name: str, documents: Mapping[int, Tokens], known: set[int], tokenizer: Tokenizer, most: int) -> HeldOut:
    """The documents that make `most` tokens, in the order of their hashes, which is a sample by chance."""
    new = [key for key in sorted(documents) if key not in known]
    taken: list[Tokens] = []
    total = 0
    for key in new:
        tokens = documents[key][:LONGEST]
        if total + len(tokens) > most:
            break
        taken.append(tokens)
        total += len(tokens)
    left_out = len(documents) - len(new)
    if len(taken) < FEWEST:
        told = f", of {len(documents):,} ({left_out:,} stand in an arm's file, whole or for the most part)"
        told = told if left_out else ""
        raise Gpt2UsageError(
            f"{name} holds {len(taken)} documents to measure on{told}: an interval needs {FEWEST} or more; give more "
            "texts, cut long ones into several files, or raise --held-out-tokens."
        )
    end = tokenizer.document_end
    sizes = [len(tokenizer.decode_bytes(tokens[tokens != end].tolist())) for tokens in taken]
    return HeldOut(name, taken, np.array(sizes, np.int64), left_out)
