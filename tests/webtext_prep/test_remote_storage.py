"""Every stage reads and writes behind URLs: the same bytes as on this machine, nothing but the state stays here."""

import random

import pytest

from webtext_prep import storage
from webtext_prep.storage import location

WORDS = [f"word{number}" for number in range(300)]


def text_of(seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=200)) + "."


@pytest.fixture
def road(webtext, tmp_path, contents):
    """`road(place, format)` takes texts through every stage but download, all outputs below `place`."""

    def run(place, format_name: str, workers: int) -> dict[str, bytes]:
        with storage.create(place / "urls.txt") as file:
            file.write(b"".join(b"http://example%d.com/page.html\n" % (number % 7) for number in range(50)))
        for number in range(12):
            with storage.create(place / "texts" / f"http%3A%2F%2Fa.com%2F{number}.txt") as file:
                file.write(text_of(number % 9).encode())

        def stage(name: str, source: str, target: str, *options: object) -> None:
            state = tmp_path / "state" / str(place.name) / name
            done = webtext(
                name, "--input", place / source, "--output", place / target, "--state", state,
                "--workers", workers, "--format", format_name, *options, "--json",
            )  # fmt: skip
            assert done.json["out"] > 0

        (tmp_path / "keep.py").write_text("def keep(document):\n    return not document.url.endswith('/3')\n")
        stage("blacklist", "urls.txt", "clean_urls", "--shards", 2)
        stage("merge", "texts", "merged", "--shards", 2)
        stage("clean", "merged", "clean", "--language", "any")
        stage("filter", "clean", "mine", "--function", f"{tmp_path / 'keep.py'}:keep")
        stage("dedup", "mine", "unique")
        stage("tokenize", "unique", "corpus")
        return contents(place)

    return run


@pytest.mark.parametrize(
    ("protocol", "workers", "format_name"),
    [("memory", 1, "parquet"), pytest.param("practice", 2, "jsonl.zst", marks=pytest.mark.exhaustive)],
)
def test_all_stages_write_the_same_bytes_behind_a_url(road, tmp_path, protocol, workers, format_name):
    here, there = tmp_path / "here", location(f"{protocol}://{tmp_path}") / "there"
    expected = road(here, format_name, 1)
    assert road(there, format_name, workers) == expected
    assert f"unique/part-00000.{format_name}" in expected
    assert "corpus_text_document.bin" in expected
    assert not (tmp_path / "there").exists() or protocol == "practice"
