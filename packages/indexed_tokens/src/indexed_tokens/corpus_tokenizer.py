"""The tokenizer that travels with a corpus: `<prefix>.tokenizer.json` beside `<prefix>.bin` and `<prefix>.idx`.

Token files are numbers that mean nothing without their tokenizer. With it beside them, training, evaluation and
inspection need no flag and can't use a wrong one. It is a Hugging Face tokenizer.json, which other tools open, too;
Megatron-LM's own files have none.
"""

from __future__ import annotations

from pathlib import Path

from indexed_tokens.checksums import record_path, recorded_facts
from indexed_tokens.errors import IndexedTokensError
from indexed_tokens.reader import prefix_of
from indexed_tokens.tokenizer import Tokenizer


def tokenizer_path(path: str | Path) -> Path:
    """`corpus_text_document`, or one of its token files -> `corpus_text_document.tokenizer.json`."""
    return Path(f"{prefix_of(path)}.tokenizer.json")


def save_corpus_tokenizer(path: str | Path, tokenizer: Tokenizer) -> Path:
    """Write `tokenizer` beside the token files of that prefix, atomically; returns the file's path.

    Equal tokenizers give equal bytes.
    """
    file = tokenizer_path(path)
    tokenizer.save_json(file)
    return file


def corpus_tokenizer(path: str | Path) -> Tokenizer | None:
    """The tokenizer that lies beside the token files of that prefix; None where there is none.

    Raises IndexedTokensError if the file is damaged, or is not the tokenizer that the record beside it names.
    """
    file = tokenizer_path(path)
    if not file.exists():
        return None
    tokenizer = Tokenizer.from_path(file)
    if recorded_facts(path).get("tokenizer", tokenizer.fingerprint) != tokenizer.fingerprint:
        raise IndexedTokensError(
            f"{file} is not the tokenizer that {record_path(path).name} beside it names: it was damaged or replaced; "
            "copy the one that belongs to the token files, or make these again."
        )
    return tokenizer
