"""`webtext import-tokens`: bare token files of other programs to a `.bin/.idx` pair with its tokenizer.

Read are the raw numbers of nanoGPT (`train.bin`) and OLMo (`.npy` without a header), arrays of numpy, the shards of
llm.c and modded-nanogpt (256 numbers of 32 bits first, of them a magic number, a version and the count of tokens), and
datatrove's `.ds` with the ends of its documents in `.ds.index`. Elsewhere documents end where <|endoftext|> does, also
in a later file: shards cut documents. Memory is that of a block, and 12 bytes for each document.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from command_kit import Progress, setting
from indexed_tokens import IndexedTokensWriter, Tokenizer, idx_path, save_corpus_tokenizer, smallest_dtype
from webtext_prep.commands import Command
from webtext_prep.documents.folders.stage_record import TOKENS_SUFFIX
from webtext_prep.errors import InputError
from webtext_prep.running.summary import Findings

SHARDS = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
"""Magic number and version of llm.c's shards (`dev/data/data_common.py`), and the type of their tokens."""
HEADER_BYTES = 1024
NUMPY = b"\x93NUMPY"
INDEX_SUFFIX = ".index"
CHUNKS = "index.json"
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f]")
BLOCK = 1 << 21
"""Tokens that are read at once."""
PROBE = 1 << 16
"""Numbers of 16 bits that tell whether a raw file has 4 bytes for each token: every second one is 0."""

Ids = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class TokenFile:
    """A file of tokens: `count` of type `dtype` from byte `begin` on, and the kind of file for messages.

    `ends` are the numbers of the tokens with which documents end, plus one, where the file says it.
    """

    path: Path
    kind: str
    dtype: np.dtype[Any]
    begin: int
    count: int
    ends: npt.NDArray[np.uint64] | None = None

    def blocks(self) -> Iterator[Ids]:
        """Its tokens, `BLOCK` at a time. Raises InputError if it got shorter."""
        with self.path.open("rb") as file:
            file.seek(self.begin)
            for at in range(0, self.count, BLOCK):
                wanted = min(BLOCK, self.count - at)
                block = np.fromfile(file, self.dtype, wanted)
                if len(block) < wanted:
                    raise InputError(f"{self.path} got shorter while it was read: start the command again.")
                yield block


@dataclass(frozen=True)
class ImportTokens(Command):
    """Make a pair of token files (PREFIX_text_document.bin, .idx, .tokenizer.json) of others' bare ones.

    Nothing of the tokens is changed; a document ends after each <|endoftext|>, or where datatrove's index says."""

    name: ClassVar[str] = "import-tokens"
    order: ClassVar[int] = 40
    summary: ClassVar[str] = "token files of nanoGPT, llm.c, modded-nanogpt, datatrove, OLMo -> a pair of .bin and .idx"

    input: tuple[str, ...] = setting((), "token files, in the order in which they are joined", metavar="FILE")
    output: str = setting("", "prefix of the pair", metavar="PREFIX")
    tokenizer: str | None = setting(
        None,
        "tokenizer that made the tokens: a folder with vocab.json and merges.txt, a tokenizer.json of byte-level BPE, "
        "or the name gpt2, which nanoGPT, llm.c and modded-nanogpt take",
        metavar="DIR|FILE",
    )

    def __post_init__(self) -> None:
        for name in ("input", "output", "tokenizer"):
            if not getattr(self, name):
                raise InputError(f"import-tokens needs --{name}: give it.")

    def find(self) -> Findings:
        """Write the pair. Raises InputError for files that can't be the tokenizer's, or a name that is taken."""
        prefix = Path(f"{self.output}{TOKENS_SUFFIX}")
        if idx_path(prefix).exists():
            raise InputError(f"{idx_path(prefix)} is there already: give another --output, or remove it.")
        tokenizer = Tokenizer.from_path(str(self.tokenizer))
        files = [token_file(Path(name)) for name in self.input]
        if tokenizer.document_end is None and any(file.ends is None for file in files):
            raise InputError(
                f"the tokenizer {self.tokenizer} has no <|endoftext|>, with which documents end: give another."
            )
        total = sum(file.count for file in files)
        dtype = smallest_dtype(tokenizer.vocabulary_size)
        with IndexedTokensWriter(prefix, dtype) as writer, Progress(self.name, "tokens", total) as progress:
            for file in files:
                _copy(file, writer, tokenizer, progress)
            writer.end_document()
            save_corpus_tokenizer(prefix, tokenizer)
        kinds = [f"{file.path}: {file.kind}, {file.count:,} tokens" for file in files]
        count = f"{writer.documents:,} document{'s' if writer.documents > 1 else ''}"
        text = f"{prefix}: {writer.total_tokens:,} tokens in {count}"
        table = {"prefix": str(prefix), "tokens": writer.total_tokens, "documents": writer.documents}
        return Findings("\n".join([*kinds, text]), {**table, "kinds": [file.kind for file in files]})


def _copy(file: TokenFile, writer: IndexedTokensWriter, tokenizer: Tokenizer, progress: Progress) -> None:
    """The tokens of one file, a document ended after each end. Raises InputError for an id that the tokenizer lacks."""
    at = 0
    if file.ends is not None:
        writer.end_document()
    for block in file.blocks():
        if int(block.max()) >= tokenizer.vocabulary_size or int(block.min()) < 0:
            place = int(np.argmax((block >= tokenizer.vocabulary_size) | (block < 0)))
            raise InputError(
                f"token {at + place:,} of {file.path} is {int(block[place])}, and {tokenizer.name} has "
                f"{tokenizer.vocabulary_size:,} ids: give the --tokenizer that made it ({file.kind} was read)."
            )
        if file.ends is None:
            ends = np.flatnonzero(block == tokenizer.document_end) + 1
        else:
            low, high = np.searchsorted(file.ends, np.array([at + 1, at + len(block) + 1], np.uint64))
            ends = (file.ends[low:high] - np.uint64(at)).astype(np.int64)
        begin = 0
        for end in ends.tolist():
            writer.extend(block[begin:end])
            writer.end_document()
            begin = end
        writer.extend(block[begin:])
        at += len(block)
        progress.advance(len(block))


def token_file(path: Path) -> TokenFile:
    """What kind of file lies at `path`. Raises InputError for one that holds no tokens."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES)
    except OSError as error:
        raise InputError(f"can't read {path} ({error.strerror}): give a token file.") from None
    index = path.with_name(path.name + INDEX_SUFFIX)
    if index.is_file():
        return _of_datatrove(path, size, index)
    if head.startswith(NUMPY):
        return _of_numpy(path)
    magic, version, count = np.frombuffer(head[:12], "<i4").tolist() if len(head) == HEADER_BYTES else (0, 0, 0)
    if (magic, version) in SHARDS:
        shard = TokenFile(path, "a shard of llm.c", np.dtype(SHARDS[magic, version]), HEADER_BYTES, count)
        return _checked(shard, size, f"its header says {count:,} tokens")
    _check_is_bare(path, head)
    probe = np.fromfile(path, "<u2", PROBE)
    is_wide = len(probe) > 2 and size % 4 == 0 and not probe[1::2].any()
    dtype = np.dtype("<u4" if is_wide else "<u2")
    raw = TokenFile(path, f"raw numbers of {8 * dtype.itemsize} bits", dtype, 0, size // dtype.itemsize)
    return _checked(raw, size, "raw tokens have 2 or 4 bytes each")


def _check_is_bare(path: Path, head: bytes) -> None:
    """Raise InputError for a file that holds something else than tokens: any bytes can be read as numbers of 16 bits.

    litdata 0.2.76 (litgpt) and MosaicML streaming 0.10.0 name their chunks in an `index.json` beside them. A chunk
    begins with the places of its items, and the type of its tokens stands in that table alone.
    """
    if idx_path(path.with_suffix("")).is_file():
        raise InputError(f"{path} has an index beside it, so it is a pair already: `gpt2 train` takes it.")
    table = path.with_name(CHUNKS)
    if table.is_file() and path.name.encode() in table.read_bytes():
        raise InputError(f"{path} is a chunk of what {table} describes, and holds more than tokens: write these alone.")
    if _is_text(head):
        raise InputError(f"{path} is text, not tokens: `webtext tokenize` makes tokens of documents.")


def _is_text(head: bytes) -> bool:
    """Whether `head` begins a text: UTF-8, which may be cut in its last character, without control characters."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return bool(text) and not _CONTROLS.search(text)


def _of_datatrove(path: Path, size: int, index: Path) -> TokenFile:
    ends = np.memmap(index, "<u8", "r") if index.stat().st_size >= 8 else np.zeros(0, "<u8")
    count = int(ends[-1]) if len(ends) else 0
    width = size // count if count else 0
    if index.stat().st_size % 8 or (ends[1:] < ends[:-1]).any() or width not in (2, 4):
        raise InputError(f"{index} is no index of {path}, which has {size:,} bytes: copy both files again.")
    found = TokenFile(path, "datatrove's", np.dtype(f"<u{width}"), 0, count, ends)
    return _checked(found, size, f"{index} says {count:,} tokens")


def _of_numpy(path: Path) -> TokenFile:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} can't be read as an array of numpy ({error!s:.99}): it is damaged.") from None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"{path} holds an array of shape {array.shape} and type {array.dtype}: tokens are one row of ids."
        )
    return _checked(
        TokenFile(path, "an array of numpy", array.dtype, array.offset, len(array)),
        path.stat().st_size,
        f"its header says {len(array):,} tokens",
    )


def _checked(file: TokenFile, size: int, why: str) -> TokenFile:
    """`file`, if that many bytes are there; raises InputError for others, and for none."""
    if file.count < 1 or file.begin + file.count * file.dtype.itemsize != size:
        raise InputError(f"{file.path} has {size:,} bytes, and {why}: it is cut off, or no token file.")
    return file
