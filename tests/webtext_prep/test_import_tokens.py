"""`webtext import-tokens`: token files of others, by their documented bytes, become a pair with its tokenizer."""

import numpy as np
import pytest

from indexed_tokens import IndexedTokens, Tokenizer, corpus_tokenizer
from indexed_tokens.tokenizer import byte_alphabet
from webtext_prep.commands import import_tokens

END = 0
DOCUMENTS = [[5, 6, 7, END], [8, END], [9, 10, 11, 12, 13, END], [14]]
TOKENS = np.array([token for document in DOCUMENTS for token in document])


@pytest.fixture
def tokenizer(tmp_path):
    made = Tokenizer({token: number for number, token in enumerate(["<|endoftext|>", *byte_alphabet()])}, [])
    made.save(tmp_path / "tokenizer")
    return made


def shard(path, tokens, dtype=np.uint16, magic=20240520, version=1, count=None):
    """A shard as `write_datafile` of llm.c writes it."""
    header = np.zeros(256, np.int32)
    header[:3] = magic, version, len(tokens) if count is None else count
    path.write_bytes(header.tobytes() + np.asarray(tokens, dtype).tobytes())
    return path


def raw(path, dtype=np.uint16, tokens=TOKENS):
    path.write_bytes(np.asarray(tokens, dtype).tobytes())
    return path


def of_datatrove(path, width=2, ends=None):
    path.write_bytes(TOKENS.astype(f"<u{width}").tobytes())
    path.with_name(f"{path.name}.index").write_bytes(
        np.asarray(np.cumsum([len(d) for d in DOCUMENTS]) if ends is None else ends, "<u8").tobytes()
    )
    return path


def array(path, values=TOKENS):
    np.save(path, values)
    return path


FILES = {
    "nanogpt": lambda folder: [raw(folder / "train.bin")],
    "llm.c": lambda folder: [shard(folder / "a.bin", TOKENS[:2]), shard(folder / "b.bin", TOKENS[2:])],
    "llm.c-of-32-bits": lambda folder: [shard(folder / "a.bin", TOKENS, np.uint32, 20240801, 7)],
    "olmo": lambda folder: [raw(folder / "part-0.npy")],
    "olmo-of-32-bits": lambda folder: [raw(folder / "part-0.npy", np.uint32)],
    "numpy": lambda folder: [array(folder / "tokens.npy")],
    "datatrove": lambda folder: [of_datatrove(folder / "000.ds")],
    "datatrove-of-32-bits": lambda folder: [of_datatrove(folder / "000.ds", 4)],
}


@pytest.mark.parametrize("block", [1 << 21, 3])
@pytest.mark.parametrize("kind", FILES)
def test_tokens_are_the_same_and_documents_end_where_they_did(tmp_path, tokenizer, webtext, monkeypatch, kind, block):
    monkeypatch.setattr(import_tokens, "BLOCK", block)
    files = FILES[kind](tmp_path)
    command = ["--input", *files, "--output", tmp_path / "out", "--tokenizer", tmp_path / "tokenizer"]
    done = webtext("import-tokens", *command, "--json").json
    assert (done["tokens"], done["documents"]) == (13, 4)
    pair = IndexedTokens(tmp_path / "out_text_document")
    assert [pair[number].tolist() for number in range(len(pair))] == DOCUMENTS
    assert corpus_tokenizer(pair.prefix).fingerprint == tokenizer.fingerprint
    assert "is there already: give another --output" in webtext("import-tokens", *command).err


def beside(path, name, content):
    path.with_name(name).write_bytes(content)
    return raw(path)


def text(path, begin="The tokens of a text are numbers, and its letters are, too.\r\n"):
    path.write_bytes((begin + 100 * "caf\u00e9 \u65e5\u672c ").encode()[:2048])
    return path


def cut(path):
    path.write_bytes(path.read_bytes()[:-2])
    return path


REFUSED = [
    (lambda p: raw(p, tokens=[5, 257]), "token 1 of", "tokenizer has 257 ids: give the --tokenizer"),
    (lambda p: raw(p, tokens=[]), "", "has 0 bytes, and raw tokens have 2 or 4 bytes each"),
    (lambda p: shard(p, TOKENS, count=15), "", "its header says 15 tokens: it is cut off"),
    (lambda p: shard(p, TOKENS, count=-1), "", "its header says -1 tokens: it is cut off"),
    (lambda p: of_datatrove(p, ends=[7, 3, 13]), "", "is no index of"),
    (lambda p: of_datatrove(p, ends=[1 << 63]), "", "is no index of"),
    (lambda p: of_datatrove(p, ends=[]), "", "is no index of"),
    (lambda p: array(p, np.zeros((2, 2), int)), "", "holds an array of shape (2, 2)"),
    (lambda p: array(p, np.array([3, -1])), "token 1 of", "is -1"),
    (lambda p: cut(array(p)), "", "can't be read as an array of numpy"),
    (lambda p: p, "can't read", "give a token file"),
    (text, "", "is text, not tokens: `webtext tokenize`"),
    (lambda p: beside(p, "x.idx", b"MMIDIDX"), "has an index beside it", "a pair already"),
    (
        lambda p: beside(p, "index.json", b'{"chunks": [{"filename": "x.npy"}]}'),
        "is a chunk of what",
        "more than tokens",
    ),
]


@pytest.mark.parametrize(("make", "first", "then"), REFUSED)
def test_what_is_no_token_file_of_the_tokenizer_is_refused(tmp_path, tokenizer, webtext, make, first, then):
    path = make(tmp_path / "x.npy")
    command = ["--input", path, "--output", tmp_path / "out", "--tokenizer", tmp_path / "tokenizer"]
    done = webtext("import-tokens", *command)
    assert done.code == 2 and first in done.err and then in done.err
    assert not list(tmp_path.glob("out*"))
    assert "needs --tokenizer: give it" in webtext("import-tokens", *command[:-2]).err
