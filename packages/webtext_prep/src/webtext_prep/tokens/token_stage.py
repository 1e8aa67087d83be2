"""What stages that write token files share: their names, a draft that several tasks fill, and how it is published.

The draft lies among the files between phases; it is created at its full size, and each task writes its own place in
it. Its name holds a digest of what it is made from and a random part: a marker of a task that wrote into a draft never
holds for another one. Publishing gives the finished draft its final names, the `.idx` last.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from command_kit.atomic import sync_file
from indexed_tokens import Tokenizer, idx_path, prefix_of
from indexed_tokens.writer import PairDraft
from webtext_prep import storage
from webtext_prep.documents.folders.stage_record import RECEIPTS_SUFFIX, TOKEN_SUFFIXES, TOKENS_SUFFIX
from webtext_prep.errors import InputError
from webtext_prep.running.stage import Stage, Writes
from webtext_prep.storage.locations import Location

PAIRS = "token files (the prefix of a .bin and .idx)"
"""The words of messages for them."""
Checksums = dict[str, dict[str, int]]
"""See `PairDraft.checksums`; a fact of the record."""


def token_files(output: Location) -> tuple[Location, ...]:
    """The `.bin`, the `.idx` and the tokenizer of an output prefix."""
    return tuple(output.with_name(f"{output.name}{TOKENS_SUFFIX}{suffix}") for suffix in TOKEN_SUFFIXES)


def pair_named(given: str) -> Path | None:
    """The prefix of the token files that a user names by their prefix, with or without `_text_document`, or a file.

    None if there are none of that name. Raises InputError for a URL.
    """
    if not isinstance(storage.location(given), Path):
        raise InputError(f"token files are mapped into memory: copy {given} to this machine first.")
    return next(
        (pair for pair in (prefix_of(given), Path(f"{given}{TOKENS_SUFFIX}")) if idx_path(pair).is_file()), None
    )


def receipts_file(output: Location) -> Location:
    """The receipts of what was dropped, next to the token files of an output prefix."""
    return output.with_name(f"{output.name}{TOKENS_SUFFIX}{RECEIPTS_SUFFIX}")


def _files_in(output: Location) -> list[Location]:
    return [path for path in (*token_files(output), receipts_file(output)) if storage.is_file(path)]


@dataclass(frozen=True)
class TokenFileStage(Stage):
    """A stage whose output is `PREFIX_text_document.bin`, `.idx` and `.tokenizer.json`, and receipts."""

    writes: ClassVar[Writes] = Writes("tokens", folders=(), others=_files_in)


def open_draft(folder: Path, digest: str, dtype: str, sequences: int, documents: int, size: int) -> PairDraft:
    """The draft in `folder` of what `digest` names: that of an earlier run if it is there, else a new one.

    Other drafts are removed. For the other arguments see `PairDraft`.
    """
    for path in sorted(folder.glob("draft-*.bin")):
        draft = PairDraft(path, path.with_suffix(".idx"), dtype, sequences, documents, size)
        with contextlib.suppress(FileNotFoundError):
            sizes = (draft.binary.stat().st_size, draft.index.stat().st_size)
            if path.name.startswith(f"draft-{digest}-") and sizes == (draft.size, draft.index_size):
                return draft
        draft.binary.unlink()
        draft.index.unlink(missing_ok=True)
    path = folder / f"draft-{digest}-{secrets.token_hex(4)}.bin"
    draft = PairDraft(path, path.with_suffix(".idx"), dtype, sequences, documents, size)
    draft.create()
    return draft


def publish(draft: PairDraft, tokenizer: Tokenizer | None, outputs: Sequence[Location]) -> None:
    """Give a finished draft its final names, and the tokenizer its place next to it.

    An index of earlier tokens goes first and the new one comes last: no reader ever meets files that do not belong
    together. The draft stays under its own names, too, where the system can link files, so that after a kill right here
    nothing is done again.

    Args:
        draft: the two files.
        tokenizer: None leaves none next to the token files.
        outputs: the final `.bin`, `.idx` and, if there is a tokenizer, `.tokenizer.json`.
    """
    binary, index = outputs[:2]
    sidecar = binary.with_name(binary.name.removesuffix(TOKEN_SUFFIXES[0]) + TOKEN_SUFFIXES[2])
    for path in (draft.binary, draft.index):
        sync_file(path)
    storage.remove(index)
    if tokenizer is None:
        storage.remove(sidecar)
    else:
        beside = draft.binary.with_suffix(".tokenizer.json")
        tokenizer.save_json(beside)
        storage.publish(beside, sidecar)
    storage.publish(_second_name(draft.binary), binary)
    storage.publish(_second_name(draft.index), index)


def _second_name(path: Path) -> Path:
    """Another name for a file, which may be moved away; the file itself where the system can't link files."""
    other = path.with_name(f"published-{path.name}")
    other.unlink(missing_ok=True)
    try:
        other.hardlink_to(path)
    except OSError:
        return path
    return other
