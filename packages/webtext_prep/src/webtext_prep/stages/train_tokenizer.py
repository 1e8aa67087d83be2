"""`webtext train-tokenizer`: a byte-level BPE of any size, learned from documents, in GPT-2's files.

Word counts hardly change beyond some 100 MB of text, so a sample is enough, and bounds memory and time. It is taken by
a hash of the seed and each document: which documents are in it does not depend on shards, order
or workers, and neither does anything that is learned from them. Three phases:

    choose  each shard: the documents with the smallest hashes, as many as a whole sample has
    count   each shard: the words of its documents in the sample; its documents to measure with, to a file
    train   the merges (`tokens/pair_merging.py`), in one task

One document in 32 is held out: on some of these the tokenizer is compared with GPT-2's. Words are counted as GPT-2
splits text, some 30 MB per second and core. Counts are sums and ids follow from the merges, so that the order of the
texts changes nothing. The merges are those of Hugging Face's trainer, which takes four times as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from command_kit import setting
from indexed_tokens import END_OF_TEXT, Tokenizer
from indexed_tokens.checksums import checksum_of_file
from indexed_tokens.gigatoken_encoder import split_into_words
from indexed_tokens.tokenizer import byte_alphabet
from indexed_tokens.tokenizer_files import TokenizerTables
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.partitions import load_array, save_array
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.documents.folders.shards import DocumentWriter, read_documents, write_documents
from webtext_prep.running.estimates import Needs
from webtext_prep.running.job import Job
from webtext_prep.running.stage import Outcome, Stage, Writes, receipts_writer
from webtext_prep.running.tasks import Context, Files, Tally, Task
from webtext_prep.storage.locations import Location
from webtext_prep.tokens.runs import Entries, document_key, first_by_key, shuffle_key

PIECE = 2_000
"""Characters of text that are split at once. Longer words, which are no language, are cut: the time for a word grows
with the square of its length."""


def count_words(texts: Iterable[str]) -> Counter[bytes]:
    """The words of some texts, as GPT-2 splits text, in UTF-8; and how often each occurs."""
    counted = Counter[bytes]()
    for text in texts:
        for piece in pieces(text):
            counted.update(split_into_words(piece))
    return counted


def learn_bpe(
    counted: Mapping[bytes, int],
    vocabulary_size: int,
    min_frequency: int,
    report: Callable[[int], None] = lambda tokens: None,
) -> TokenizerTables:
    """The vocabulary and merges that words give: bytes and merges numbered as GPT-2's are, `<|endoftext|>` the last.

    Args:
        counted: each word, and how often it occurs.
        vocabulary_size: tokens, bytes and `<|endoftext|>` included; there are fewer where the words give no more.
        min_frequency: how often a pair must occur to be merged.
        report: is told the number of tokens now and then.
    """
    from webtext_prep.tokens.pair_merging import learn_merges

    shown = {byte: character for character, byte in byte_alphabet().items()}
    alphabet = bytes(byte for _, byte in sorted(byte_alphabet().items()))
    tokens, merges = learn_merges(counted, alphabet, vocabulary_size - 1, min_frequency, report)
    names = ["".join(map(shown.__getitem__, token)) for token in tokens]
    vocabulary = {name: number for number, name in enumerate([*names, END_OF_TEXT])}
    return TokenizerTables(vocabulary, [(names[left], names[right]) for left, right in merges])


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """`text` in parts of at most `size` characters, cut at spaces after a word: no word is divided by that."""
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


FILES = ("vocab.json", "merges.txt", "tokenizer.json")
KINDS = ("words", "counts", "held_out")
_END = b"\xff"
"""Between two words: no UTF-8 has it."""
HELD_OUT_EVERY = 32
"""One document in this many is held out."""


@dataclass(frozen=True)
class LargestKeys:
    """The largest key of a document in the sample, and of one to measure with; None for no document."""

    sample: int | None
    held_out: int | None

    def kind_of(self, key: int) -> str | None:
        """`sample`, `held_out`, or None for a document that is neither."""
        if is_held_out(key) and self.held_out is not None:
            return "held_out" if key <= self.held_out else None
        return "sample" if self.sample is not None and key <= self.sample else None


def sample_key(document: Document, seed: int) -> int:
    """What decides whether a document is in the sample, by its size; its last digit says whether it is held out.

    That digit is the one of `shuffle_key`, whose order does not follow from it.
    """
    key = document_key(document, f"train-tokenizer {seed}")
    return key - key % HELD_OUT_EVERY + shuffle_key(document, seed) % HELD_OUT_EVERY


def is_held_out(key: Any) -> Any:
    """Whether a document with that key is kept from training, where there are others; for one key, or an array."""
    return key % HELD_OUT_EVERY == 0


@dataclass(frozen=True)
class TrainTokenizer(Stage):
    """Learn a byte-level BPE from documents: vocab.json, merges.txt and tokenizer.json in the folder DIR.

    Reads document shards. Text is split into words as GPT-2 splits it, and <|endoftext|> is the last token.
    `webtext tokenize --tokenizer DIR` uses it, and so does everything that reads a GPT-2 tokenizer.
    Not used: held_out (one document in 32, to measure with), empty; and not_sampled, which are only counted."""

    name: ClassVar[str] = "train-tokenizer"
    order: ClassVar[int] = 75
    version: ClassVar[int] = 4
    summary: ClassVar[str] = "documents -> a tokenizer of their own, for tokenize --tokenizer"
    writes: ClassVar[Writes] = Writes("tokenizer", tables=FILES)
    libraries = ("tiktoken", "gigatoken")

    vocabulary_size: int = setting(
        50257, "tokens, the 256 bytes and <|endoftext|> included; a small model does well with 2,000 to 10,000", ge=257
    )
    sample_bytes: int = setting(100_000_000, "bytes of text to learn from; the documents are chosen by a hash", ge=1)
    min_frequency: int = setting(2, "how often a pair must occur to become a token", ge=1)
    seed: int = setting(1234, "of the choice of documents", ge=0)

    def needs(self, sample: Sample, workers: int) -> Needs:
        """What `--sample-bytes` of the input need."""
        return super().needs(sample.part(self.sample_bytes / max(1, sample.text)), workers)

    def choose(self, task: Task, context: Context) -> None:
        """Task: keys and sizes of the documents of a shard that may be in the sample."""
        rows = []
        for document in context.counted(read_documents(task.reads.shard)):
            if document.text:
                rows.append((sample_key(document, self.seed), len(document.text.encode("utf-8", "replace"))))
        save_array(task.writes.candidates, np.vstack(self._candidates(np.array(rows, np.uint64).reshape(-1, 2))))

    def _candidates(self, entries: Entries) -> tuple[Entries, Entries]:
        """Of any documents, the ones that may be in the sample, and 4 MB of those that may be measured."""
        held_out = is_held_out(entries[:, 0])
        return first_by_key(entries[~held_out], self.sample_bytes), first_by_key(entries[held_out], 4_000_000)

    def _limits(self, files: Iterable[Location]) -> LargestKeys:
        """Which documents of the whole corpus are in the sample. Memory: entries for twice a sample."""
        chosen = np.empty((0, 2), np.uint64)
        for path in files:
            chosen = np.vstack(self._candidates(np.vstack([chosen, load_array(path)])))
        last = [int(entries[-1, 0]) if len(entries) else None for entries in self._candidates(chosen)]
        # A corpus of one document has none to spare.
        return LargestKeys(*last) if last[0] is not None else LargestKeys(last[1], None)

    def count(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: the words of the documents of a shard that are in the sample, and the documents to measure with, to
        files. Returns counts."""
        limits, tally, size = LargestKeys(*task.options["limits"]), Tally(), 0

        def texts(held_out: DocumentWriter) -> Iterator[str]:
            nonlocal size
            for document in tally.counted(context.counted(read_documents(task.reads.shard))):
                key = sample_key(document, self.seed)
                kind = limits.kind_of(key) if document.text else None
                if kind == "sample":
                    tally.kept += 1
                    data = document.text.encode("utf-8", "replace")
                    size += len(data)
                    yield data.decode()
                    continue
                if kind == "held_out":
                    held_out.write(Document(document.url, document.text))
                if not document.text:
                    tally.drop(document, "empty")
                elif is_held_out(key) and limits.held_out is not None:
                    tally.drop(document, "held_out")
                else:
                    tally.dropped["not_sampled"] += 1

        with receipts_writer(task, tally), write_documents(task.writes.held_out, durable=False) as held_out:
            counted = count_words(texts(held_out))
        save_array(task.writes.words, np.frombuffer(_END.join(counted), np.uint8))
        save_array(task.writes.counts, np.fromiter(counted.values(), np.int64, len(counted)))
        return {**tally.as_dict(), "bytes": size}

    def train(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: learn from the words of all shards, measure, and write the tokenizer. Returns its figures."""
        counted = Counter[bytes]()
        for words, counts in zip(task.reads["words"], task.reads["counts"], strict=True):
            of_shard = load_array(counts).tolist()
            some = dict(zip(load_array(words).tobytes().split(_END) if of_shard else (), of_shard, strict=True))
            counted.update(some)
        tables = learn_bpe(counted, self.vocabulary_size, self.min_frequency, context.report)
        tokenizer = Tokenizer(*tables, "the new tokenizer")
        draft = context.scratch / "tokenizer"
        draft.mkdir(parents=True, exist_ok=True)
        tokenizer.save(draft)
        tokenizer.save_json(draft / "tokenizer.json")
        checksums = {name: checksum_of_file(draft / name)._asdict() for name in FILES}
        for place in task.writes.all():
            storage.remove(place)  # no file of another tokenizer next to one of this
        for place in task.writes.all():
            storage.publish(draft / place.name, place)
        facts = {"vocabulary_size": tokenizer.vocabulary_size, "tokenizer": tokenizer.fingerprint}
        return {**facts, "checksums": checksums, **measured(tokenizer, task.reads["held_out"])}

    def run(self, job: Job) -> Outcome:
        """Choose, copy the chosen, learn."""
        total = job.documents
        choosing = job.shard_tasks(lambda at: Files(candidates=job.scratch / f"part-{at:05}.keys.npy"))
        job.map("choose", self.choose, choosing, total=total)
        limits = self._limits(task.writes.candidates for task in choosing)
        ends = dict(zip(KINDS, ("words.npy", "counts.npy", "held_out.jsonl.zst"), strict=True))
        sampling = []
        for at, task in enumerate(choosing):
            copies = {kind: job.scratch / f"{task.name}.{end}" for kind, end in ends.items()}
            writes = Files(**copies, dropped=job.receipts_path(at))
            sampling.append(replace(task, writes=writes, options={"limits": astuple(limits)}))
        results = job.map("count", self.count, sampling, total=total)
        tally = Tally.total(results)
        if not tally.kept:
            return Outcome(tally, [])
        samples = Files(**{kind: [path for task in sampling for path in task.writes[kind]] for kind in KINDS})
        learning = Files(tokenizer=[job.output / name for name in FILES])
        (facts,) = job.map(
            "train", self.train, [Task("all", samples, learning)], unit="tokens", total=self.vocabulary_size
        )
        if facts["vocabulary_size"] < self.vocabulary_size:
            tally.problem(
                f"the text gave {facts['vocabulary_size']:,} of {self.vocabulary_size:,} tokens: no other pair occurs "
                f"{self.min_frequency} times. More text gives more tokens."
            )
        size = sum(result["bytes"] for result in results)
        receipts = [task.writes.dropped for task in sampling]
        return Outcome(tally, [*learning.all(), *receipts], facts={"sample_bytes": size, **facts})


def measured(tokenizer: Tokenizer, files: Iterable[Location]) -> dict[str, Any]:
    """Bytes per token on documents that it was not trained on, and GPT-2's on the same; nothing where there are none.

    How long the same text becomes in tokens, and so how much of it fits into a context, is what one tokenizer has over
    another.
    """
    gpt2 = Tokenizer.gpt2()
    size = ours = theirs = 0
    for path in files:
        for document in read_documents(path):
            size += len(document.text.encode("utf-8", "replace"))
            ours += len(tokenizer.encode(document.text))
            theirs += len(gpt2.encode(document.text))
    if not size:
        return {}
    per_token = {"bytes_per_token": round(size / ours, 3), "gpt2_bytes_per_token": round(size / theirs, 3)}
    return {"held_out_bytes": size, **per_token}
