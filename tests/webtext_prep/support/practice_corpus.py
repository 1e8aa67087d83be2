"""A small corpus with all its steps, and a training run, for tests of what looks at finished folders."""

import json
from pathlib import Path

from webtext_prep.cli import main
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import write_documents

SCRIPT = "<script>window.ran = 1</script>"
WORDS = """
    quick brown fox jumps lazy dog small birds sing old trees near river bank the the over a while many in
""".split()  # noqa: SIM905


def text_of(number: int, words: int = 220) -> str:
    return " ".join(
        WORDS[(number * 7 + place * (number % 5 + 1) + place // 11) % len(WORDS)] + str(number + place)
        for place in range(words)
    )


def run(*arguments: object) -> None:
    """Run `webtext`, which must succeed."""
    assert main([str(argument) for argument in arguments]) == 0


def make_corpus(folder: Path) -> Path:
    """A download with outcomes, and what clean, dedup and tokenize made of it; some of its text is a script."""
    documents = [
        Document(
            f"http://{'www.' if number % 3 else ''}site{number % 4}.org/{number}",
            text_of(number),
            {"title": f"T{number}"},
        )
        for number in range(24)
    ]
    documents += [Document(f"http://copy.net/{number}", text_of(3) + f" and {number}") for number in range(3)]
    documents += [
        Document("http://site1.org/short", f"Too short {SCRIPT}\u202eevil"),
        Document("http://a.fr/1", "Le chat est sur la table et la pluie tombe. " * 40),
    ]
    documents.append(
        Document(
            'http://evil.org/"><img src=x onerror=alert(1)>',
            f"</div>{SCRIPT}\u202eevil " + text_of(40),
            {"title": SCRIPT, "domain": f"evil{SCRIPT}.org"},
        )
    )
    download = folder / "download"
    for shard in range(2):
        with write_documents(download / f"part-{shard:05}.jsonl.zst") as writer:
            for document in documents[shard::2]:
                writer.write(document)
    with write_documents(download / "outcomes" / "part-00000.jsonl.zst") as writer:
        for document in documents:
            writer.write(Document(document.url, "", {"outcome": "ok"}))
        for number, outcome in enumerate(["http_404", "timeout", "robots", "http_404"]):
            writer.write(Document(f"http://gone.org/{number}", "", {"outcome": outcome}))
    before = {
        "stage": "blacklist",
        "version": 3,
        "settings": {"max_length": 2048},
        "in": 50,
        "out": 34,
        "facts": {},
        "notes": {},
    }
    before |= {"dropped": {"blocked_domain": 9, "malformed": 7}, "inputs": [{"files": 1}], "sha256": "0" * 64}
    record = {
        "stage": "download",
        "version": 1,
        "settings": {"user_agent": SCRIPT},
        "in": 34,
        "out": 30,
        "facts": {},
        "notes": {},
    }
    record |= {"dropped": {"http_404": 2, "timeout": 1, "robots": 1}, "inputs": [before], "problems": [SCRIPT]}
    record |= {"shards": {"part-00000.jsonl.zst": 15, "part-00001.jsonl.zst": 15}}
    (download / "stage.json").write_text(json.dumps(record))
    for stage, source, target in (
        ("clean", "download", "clean"),
        ("dedup", "clean", "dedup"),
        ("tokenize", "dedup", "corpus"),
    ):
        run(stage, "--input", folder / source, "--output", folder / target, "--workers", 1)
    return folder


def make_run(folder: Path) -> Path:
    """A training run, and the summaries that the pipeline kept next to it."""
    model = folder / "model"
    (model / "checkpoints").mkdir(parents=True)
    (model / "config.toml").write_text('[train]\nlayers = 4\nlr = 0.004\ndata = ["corpus_text_document"]\n')
    rows = [
        {"step": step, "tokens": 512 * step, "loss": 10 - step / 20, "lr": 0.001, "tokens_per_second": 900.0}
        for step in range(1, 101)
    ]
    rows += [{"step": 100, "tokens": 51200, "valid_loss": 5.125, "valid_tokens": 512}]
    for step in range(0, 101, 10):
        rows += [
            {"step": step, "kind": "sample", "prompt": f"Once {SCRIPT}", "sample": 0, "text": f" at {step} \x1b[2J<b>"},
            {
                "step": step,
                "kind": "task",
                "task": "lambada",
                "settings": {"input": f"{SCRIPT}.jsonl"},
                "result": {"passages": 12, "last_word_accuracy": step / 200, "loss": 77.0},
            },
        ]
    lines = [json.dumps(row) for row in rows]
    (model / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 101, "lo']))
    generated = {
        "checkpoint": str(model / "checkpoints" / "step-0000100"),
        "samples": [{"prompt": "The cat", "text": f" sat {SCRIPT}"}],
    }
    (folder / "pipeline.json").write_text(
        json.dumps({"generate": generated, "evaluate": {**generated, "loss": 5.2, "unigram_loss": 6.5}})
    )
    return model
