"""`webtext takedown --apply`: every output has the bytes of a run that never had the pages, and only what differs is
written."""

import gzip
import hashlib
import json
import random
import shutil
import subprocess
import sys

import pytest
from pages_on_loopback import Site

from indexed_tokens import IndexedTokens
from webtext_prep.cli import main
from webtext_prep.documents.folders.shards import read_documents, shards_in
from webtext_prep.documents.folders.stage_record import all_steps, trace
from webtext_prep.extraction.outcomes import OUTCOMES


def text(seed, count=150):
    """Sentences that repeat no run of words."""
    chosen = random.Random(seed)
    words = [
        f"{chosen.choice(['the', 'a', 'one', 'each', 'some', 'any', 'no'])} word{chosen.randrange(10**6)}"
        for _ in range(count)
    ]
    return "This is a page of the web, and it is written in English for the reader. " + " ".join(words)


TWIN = text(1)
"""The text of two pages, of which dedup keeps the first."""


class Pages(Site):
    """A page at each number, and others that are refused."""

    def page(self, request):
        name = request.path[1:]
        status = 200 if name.isdigit() else {"busy": 503}.get(name, 404)
        own = TWIN if name in ("1", "11") else text(name)
        request.answer(status, f"<html><body><article><p>{own}</p></article></body></html>".encode())


@pytest.fixture(scope="module")
def site():
    site = Pages()
    yield site
    site.stop()


@pytest.fixture(scope="module")
def pages(site):
    """URLs on several hosts: twins at /1 and /11, a page that is missing, and one that fails for the time being."""
    paths = [*map(str, range(20)), "gone", "busy"]
    port = site.port
    return [f"http://{('127.0.0.1', 'localhost')[number % 2]}:{port}/{path}" for number, path in enumerate(paths)]


def run(home, lists):
    """All stages from the lists of URLs to token files."""
    chain = {
        "blacklist": ["--shards", 4],
        "download": ["--allow-private-addresses", "--delay", 0, "--retries", 0, "--save-pages"],
        "merge": ["--shards", 3],
        "clean": [],
        "dedup": [],
        "corpus": [],
    }
    given = lists
    for name, settings in chain.items():
        stage = "tokenize" if name == "corpus" else name
        words = [stage, "--input", given, "--output", home / name, "--workers", 1, *settings]
        assert main(list(map(str, words))) == 0
        given = home / name
    return home


def outputs(home):
    """Everything that was made, by name: rows without the time of the fetch, and no pages, which have one, too."""
    found = {}
    for path in sorted(home.rglob("*")):
        name = str(path.relative_to(home))
        if not path.is_file() or ".state" in name or name.startswith("lists"):
            continue
        if f"/{OUTCOMES}/" in name:
            rows = list(read_documents(path))
            found[name] = [(row.url, {**row.metadata, "fetched_at": None, "page": None}) for row in rows]
        elif path.suffix == ".json":
            found[name] = json.loads(path.read_bytes())
        elif not name.startswith("download/pages/"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def write_lists(folder, urls):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.txt").write_text("\n".join(urls[:12]) + "\n")
    (folder / "b.txt").write_text("\n".join(urls[12:]) + "\n")
    return folder


def holding(home, urls):
    """The files that name one of the pages, state and unpacked shards included."""
    found = []
    for path in home.rglob("*"):
        if path.is_file() and not str(path.relative_to(home)).startswith("lists"):
            content = path.read_bytes()
            if path.suffix == ".zst":
                content = b"\n".join(repr(document).encode() for document in read_documents(path))
            if path.suffix == ".gz":
                content = gzip.decompress(content).replace(b"\r", b"'")
            found += [str(path) for url in urls if f"{url}'".encode() in content or f'{url}"'.encode() in content]
    return found


@pytest.fixture(scope="module")
def removed(pages):
    """The first of the twins, one more page, and the missing one."""
    return [pages[1], pages[5], pages[20]]


@pytest.fixture(scope="module")
def made(pages, tmp_path_factory):
    """What a run makes, and a copy of it."""
    home = tmp_path_factory.mktemp("made") / "work"
    run(home, write_lists(home / "lists", pages))
    return home, shutil.copytree(home, tmp_path_factory.mktemp("copied") / "work")


@pytest.fixture
def work(made, removed):
    """The outputs of a run, as it made them; the pages to be removed are in `remove.txt` next to the folder."""
    home, copied = made
    shutil.rmtree(home)
    shutil.copytree(copied, home)
    (home.parent / "remove.txt").write_text("\n".join(removed) + "\n")
    return home


@pytest.fixture(scope="module")
def never(pages, removed, tmp_path_factory):
    """What a run makes that never had the pages."""
    home = tmp_path_factory.mktemp("never")
    write_lists(home / "lists", pages)
    clean_lists(home, removed)
    return outputs(run(home, home / "lists"))


def clean_lists(work, removed):
    for path in (work / "lists").iterdir():
        path.write_text("".join(line for line in path.open() if line.strip() not in removed))


def takedown(webtext, work, *more):
    return webtext("takedown", "--urls", work.parent / "remove.txt", work / "corpus", "--workers", 1, *more)


def test_all_outputs_are_those_of_a_run_that_never_had_the_pages(webtext, site, work, removed, never):
    assert outputs(work) != never
    assert len(set(holding(work, removed))) > 10
    asked = len(site.asked)
    clean_lists(work, removed)
    found = takedown(webtext, work, "--apply", "--json").json
    after = outputs(work)
    assert after.keys() == never.keys()
    assert {name for name in after if after[name] != never[name]} == set()
    assert len(site.asked) == asked, "nothing is fetched again"
    assert holding(work, removed) == []
    # The other twin has come back.
    assert sum(document.text == TWIN for shard in shards_in(work / "dedup") for document in read_documents(shard)) == 1
    assert [path for names in found["written"].values() for path in names]
    # That the lists have changed since was so before the removal, and is no more.
    assert found["changes"] == []


def test_only_what_differs_is_written(webtext, work, pages):
    (work.parent / "remove.txt").write_text(pages[5] + "\n")
    before = {path: path.stat().st_mtime_ns for path in work.rglob("part-*.zst") if ".state" not in str(path)}
    holders = {path for path in before if any(document.url == pages[5] for document in read_documents(path))}
    assert 0 < len(holders) < len(before)
    clean_lists(work, [pages[5]])
    written = takedown(webtext, work, "--apply", "--json").json["written"]
    assert {path for path in before if path.stat().st_mtime_ns != before[path]} == holders
    told = {name for names in written.values() for name in names if name.endswith(".zst")}
    assert told == set(map(str, holders))


def test_lists_that_still_name_the_pages_are_told_and_nothing_is_done(webtext, work):
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    sentence = takedown(webtext, work, "--apply").sentence
    assert str(work / "lists" / "a.txt") in sentence
    assert "in row 2, 6," in sentence
    now = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    assert now == before


@pytest.mark.parametrize(
    "stage", ["download", *(pytest.param(stage, marks=pytest.mark.exhaustive) for stage in ("blacklist", "dedup"))]
)
def test_what_was_killed_is_finished_by_the_same_command(webtext, work, removed, never, stage):
    clean_lists(work, removed)
    # Dies with the first shard of that stage that is published, as by kill -9.
    code = (
        "import os, sys; from webtext_prep.storage.stores import local; from webtext_prep.cli import main\n"
        "old = local.same_bytes\n"
        f"def same(one, other):\n    if '/{stage}/part-' in str(other) or '/{stage}/stage.json' in str(other):"
        " os.kill(os.getpid(), 9)\n    return old(one, other)\n"
        "local.same_bytes = same\n"
        "import command_kit.atomic as atomic; atomic.same_bytes = same\n"
        "main(sys.argv[1:])\n"
    )
    words = ["takedown", "--urls", work.parent / "remove.txt", work / "corpus", "--apply", "--workers", 1]
    killed = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    assert outputs(work) != never
    assert "was interrupted" in takedown(webtext, work).sentence
    assert takedown(webtext, work, "--apply").code == 0
    assert outputs(work) == never
    assert takedown(webtext, work).code == 0


def own_documents(home, *, removed):
    """From a folder of texts and JSON lines to token files, by the stages that the test above has not."""
    (home / "own").mkdir(parents=True)
    rows = [{"url": f"http://own.org/{number}", "text": text(number)} for number in range(8)]
    (home / "own" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "own" / "letter.txt").write_text(text(100))
    (home / "own" / "page.txt").write_text(text(101))
    (home / "own" / "page.json").write_text(json.dumps({"url": "http://own.org/page"}))
    (home / "own" / "picture.png").write_bytes(b"")
    if removed:
        take_out(home)
    (home.parent / "mine.py").write_text("def keep(document):\n    return 'word' in document.text\n")
    (home.parent / "eval.jsonl").write_text(json.dumps({"text": text(7)[200:600]}) + "\n")
    for stage, given, output, *settings in (
        ("merge", "own", "merged", "--shards", 2),
        ("filter", "merged", "filtered", "--function", f"{home.parent / 'mine.py'}:keep"),
        ("decontaminate", "filtered", "decontaminated", "--evaluation", home.parent / "eval.jsonl"),
        ("tokenize", "decontaminated", "corpus", "--no-shuffle"),
    ):
        words = [stage, "--input", home / given, "--output", home / output, "--workers", 1, *settings]
        assert main(list(map(str, words))) == 0
    return home


def take_out(home, texts=True):
    lines = (home / "own" / "a.jsonl").read_text().splitlines(keepends=True)
    (home / "own" / "a.jsonl").write_text("".join(lines[:3] + lines[4:]))
    if texts:
        (home / "own" / "page.txt").unlink()
        (home / "own" / "page.json").unlink()


def test_documents_of_ones_own(webtext, tmp_path):
    work, never = (own_documents(tmp_path / name, removed=name == "never") for name in ("work", "never"))
    (tmp_path / "remove.txt").write_text("http://own.org/3\nhttp://own.org/page\n")
    assert f"{work / 'own' / 'a.jsonl'} still names the pages, in row 4:" in takedown(webtext, work, "--apply").sentence
    lines = (work / "own" / "a.jsonl").read_text()
    take_out(work, texts=False)
    assert "what lies there still holds 1 of the pages" in takedown(webtext, work, "--apply").err
    (work / "own" / "a.jsonl").write_text(lines)
    take_out(work)
    assert takedown(webtext, work, "--apply").code == 0
    after, expected = (outputs(home) for home in (work, never))
    assert after.keys() == expected.keys()
    different = {name for name in after if after[name] != expected[name]}
    # A digest of the user's own files, which lie in two places here.
    assert different == set(), {name: (after[name], expected[name]) for name in different}


def test_a_second_output_of_the_same_steps_follows(webtext, tmp_path):
    work = own_documents(tmp_path / "work", removed=False)
    words = ["tokenize", "--input", work / "filtered", "--output", work / "other", "--workers", 1]
    assert main(list(map(str, words))) == 0
    (tmp_path / "remove.txt").write_text("http://own.org/3\nhttp://own.org/page\n")
    take_out(work)
    assert takedown(webtext, work, "--apply").code == 0
    words = ("takedown", "--urls", tmp_path / "remove.txt", work / "other", "--apply")
    assert webtext(*words).code == 0
    assert IndexedTokens(str(work / "other_text_document")).documents == 8


@pytest.mark.parametrize("how", ["takedown", "rerun"])
def test_the_chain_of_receipts_holds_after_a_page_is_gone_that_a_stage_had_dropped(webtext, tmp_path, how):
    """The shards that clean wrote stay the same, so dedup kept the digest of a record that was no longer there: for all
    other pages merge and clean were "gone, or made again since"."""
    own = tmp_path / "a.jsonl"
    rows = [json.dumps({"url": f"http://own.org/{number}", "text": text(number)}) for number in range(3)]
    own.write_text("\n".join([*rows, json.dumps({"url": "http://own.org/short", "text": "Too short."})]))
    chain = {"merge": [], "clean": ["--language", "any"], "dedup": [], "tokenize": []}

    def run_all():
        given = own
        for stage, settings in chain.items():
            output = tmp_path / stage
            assert webtext(stage, "--input", given, "--output", output, "--workers", 1, *settings).code == 0
            given = output

    run_all()
    own.write_text("\n".join(rows))
    (tmp_path / "remove.txt").write_text("http://own.org/short\n")
    if how == "rerun":
        run_all()
    else:
        words = ("takedown", "--urls", tmp_path / "remove.txt", tmp_path / "tokenize", "--apply", "--workers", 1)
        assert webtext(*words).code == 0
    steps = all_steps(trace(tmp_path / "tokenize"))
    assert [(step.stage, step.place is not None) for step in steps] == [(stage, True) for stage in chain]
    found = webtext("why", "http://own.org/1", tmp_path / "tokenize")
    assert (found.code, "gone" in found.out) == (0, False)


def test_what_can_not_be_made_again_is_refused_before_anything_is_done(webtext, tmp_path, write_shards):
    work = own_documents(tmp_path / "work", removed=False)
    (tmp_path / "remove.txt").write_text("http://own.org/3\n")
    take_out(work)
    before = outputs(work)

    def refused(place):
        return webtext("takedown", "--urls", tmp_path / "remove.txt", place, "--apply").sentence

    webtext(
        "dedup",
        "--input",
        work / "filtered",
        "--output",
        tmp_path / "against",
        "--against",
        write_shards([[text(500)]]),
    )
    webtext(
        "clean", "--input", work / "merged" / "part-00000.jsonl.zst", "--output", tmp_path / "part", "--language", "any"
    )
    webtext("merge-tokens", "--input", work / "corpus", "--output", tmp_path / "joined")
    shutil.copytree(work, tmp_path / "copy")
    assert "--against" in refused(tmp_path / "against")
    assert "does not read all documents" in refused(tmp_path / "part")
    assert "merge-tokens" in refused(tmp_path / "joined")
    assert "is a copy of" in refused(tmp_path / "copy" / "filtered")
    (tmp_path / "mine.py").write_text("def keep(document):\n    return True\n")
    assert "was made with another" in refused(work / "corpus")
    assert outputs(work) == before
