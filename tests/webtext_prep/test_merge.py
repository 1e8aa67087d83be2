"""`webtext merge`: files of every kind to documents, each URL once, nothing lost without a word."""

import csv
import gzip
import io
import json
import re
import uuid
from pathlib import Path

import pytest
import zstandard
from outputs import documents_of

from webtext_prep import storage
from webtext_prep.cli import main
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.raw_files import MOST_TASKS, file_groups
from webtext_prep.documents.folders.shards import read_documents, shards_in, write_documents
from webtext_prep.running.job import Job


def run(capsys, *arguments: object) -> dict:
    arguments = ("--allow-unreadable", *arguments)
    assert main(["merge", *map(str, arguments), "--workers", "1", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def line(url: str, text: str, **metadata: object) -> str:
    return json.dumps({"url": url, "text": text, **metadata})


def test_a_text_file_is_one_document_with_its_url(tmp_path, capsys):
    """Pitfall 10: each line of a text became a document, and the URL was lost."""
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "a.txt").write_text("First line.\n\nSecond line.\n")
    (pages / "a.json").write_text(json.dumps({"url": "http://a.org/1", "title": "A"}))
    (pages / "http%3A%2F%2Fb.org%2F2.txt").write_text("By name.")
    (pages / "c.txt").write_text("No address.")
    assert run(capsys, "--input", pages, "--output", tmp_path / "out")["in"] == 3
    found = {document.url: document for document in documents_of(tmp_path / "out")}
    assert found["http://a.org/1"].text == "First line.\n\nSecond line.\n"
    assert found["http://a.org/1"].metadata == {"title": "A"}
    assert set(found) == {"http://a.org/1", "http://b.org/2", "file:c.txt"}


def test_a_bad_line_is_counted_and_named_and_the_rest_is_read(tmp_path, capsys):
    """Pitfall 11: merge stopped at the first bad line."""
    bad = tmp_path / "a.jsonl"
    rows = [line("http://a.org/1", "a"), "{broken", "[1]", '{"url": "http://x"}', '{"url": [], "text": "t"}']
    bad.write_bytes("\n".join([*rows, line("http://a.org/2", "b")]).encode() + b'\n{"text": "\xff"}\n')
    summary = run(capsys, "--input", bad, "--output", tmp_path / "out")
    assert (summary["out"], summary["dropped"]) == (2, {"unreadable": 5})
    assert all(f"{bad}, line {n}:" in p for n, p in zip([2, 3, 4, 5, 7], summary["problems"], strict=True))


def test_records_that_can_not_be_read_for_one_reason_are_one_note(tmp_path, capsys):
    """A thousand records without the right key filled the summary with ten notes that differed in the line alone."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps({"title": n}) for n in range(500)) + "\n{\n")
    (tmp_path / "c.txt").write_text("c")
    summary = run(capsys, "--input", tmp_path, "--output", tmp_path / "out")
    assert summary["dropped"] == {"unreadable": 1002}
    assert summary["problems"] == [
        "; ".join(f"{tmp_path}/a.jsonl, line {n}" for n in (1, 2, 3))
        + " and 997 more: none of the keys text, content, body, raw_content (but title: name the right one with "
        "--text-key).",
        f"{tmp_path}/a.jsonl, line 501; {tmp_path}/b.jsonl, line 501: not valid JSON (Expecting property name "
        "enclosed in double quotes at character 1).",
    ]


@pytest.mark.parametrize(("bad", "code"), [(1, 0), (2, 2)])
def test_more_than_a_tenth_unreadable_is_an_error_unless_it_is_allowed(tmp_path, capsys, bad, code):
    """merge ended with exit code 0 though two thirds of the records were unreadable."""
    rows = [line(f"http://a.org/{number}", "a") for number in range(10)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows[bad:] + ["{"] * bad))
    arguments = ["merge", "--input", str(tmp_path / "a.jsonl"), "--output", str(tmp_path / "out"), "--workers", "1"]
    assert main(arguments) == code
    if code:
        assert re.search(
            r"2 of 10 records could not be read: .*a\.jsonl, line 9; .*line 10: not valid JSON .*Nothing was written: "
            r".*--restart.* --allow-unreadable",
            capsys.readouterr().err,
        )
        assert shards_in(tmp_path / "out") == []
        assert main([*arguments, "--allow-unreadable"]) == 0
    assert len(documents_of(tmp_path / "out")) == 10 - bad
    assert main(arguments) == 0, "what is finished stays finished"


def test_a_text_too_long_for_any_shard_is_unreadable(tmp_path, capsys, monkeypatch):
    """A text of more than 256 MiB was written to a piece that could not be read again, and stopped the merge."""
    monkeypatch.setattr("webtext_prep.stages.merge.MAX_LINE_BYTES", 1000)
    monkeypatch.setattr("webtext_prep.documents.records.plain_text.MAX_LINE_BYTES", 2000)
    (tmp_path / "a.txt").write_text("\x01" * 300)  # six bytes each in JSON
    (tmp_path / "b.txt").write_text("b" * 3000)
    (tmp_path / "c.txt").write_text("c" * 300)
    summary = run(capsys, "--input", tmp_path, "--output", tmp_path / "out")
    assert [document.url for document in documents_of(tmp_path / "out")] == ["file:c.txt"]
    assert summary["dropped"] == {"unreadable": 2}


def test_files_of_every_kind_make_one_corpus(tmp_path, capsys):
    """.md, .csv and .parquet files, and names in capitals, were left out of a folder without a word."""
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "a.md").write_text("# Title\n\nMarkdown")
    (pages / "a.json").write_text('{"url": "http://a.org/"}')
    (pages / "B.TXT").write_text("capitals")
    (pages / "c.csv").write_text('url,text\nhttp://c.org/,"a\nb"\n')
    (pages / "d.tsv").write_text("url\ttext\nhttp://d.org/\ttabs\n")
    (pages / "e.JSONL.GZ").write_bytes(gzip.compress(line("http://e.org/", "e").encode()))
    (pages / "g.html").write_text("<p>")
    with write_documents(pages / "f.parquet") as writer:
        writer.write(Document("http://f.org/", "f", {"title": "F", "n": 1}))
    (pages / "lost.txt").symlink_to("gone")
    summary = run(capsys, "--input", pages, "--output", tmp_path / "out")
    assert {document.url: (document.text, document.metadata) for document in documents_of(tmp_path / "out")} == {
        "http://a.org/": ("# Title\n\nMarkdown", {"title": "Title"}),
        "file:B.TXT": ("capitals", {}),
        "http://c.org/": ("a\nb", {}),
        "http://d.org/": ("tabs", {}),
        "http://e.org/": ("e", {}),
        "http://f.org/": ("f", {"title": "F", "n": 1}),
    }
    assert summary["problems"] == [
        "not read, by suffix: 1 .html.",
        f"not read, 1 symbolic links that lead nowhere: {pages}/lost.txt.",
    ]


def test_files_and_output_may_lie_behind_a_url(bucket, tmp_path, capsys):
    """merge could only read paths of this machine."""
    for name, content in (("a.txt", "a"), ("a.json", '{"url": "http://a.org/"}'), ("deep/b.txt", "b")):
        with storage.create(bucket / "in" / name) as file:
            file.write(content.encode())
    run(capsys, "--input", bucket / "in", "--output", bucket / "out", "--state", tmp_path / "state")
    (shard,) = shards_in(bucket / "out")
    assert {document.url for document in read_documents(shard)} == {"http://a.org/", "file:deep/b.txt"}


def test_documents_without_a_url_are_kept_whatever_their_files_are_called(tmp_path, capsys):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0001.txt").write_text(f"text of {folder}")
        (tmp_path / folder / "rows.jsonl").write_text(f'{{"text": "{folder}1"}}{{"text": "{folder}2"}}\n')
        (tmp_path / folder / "list.json").write_text(f'[{{"text": "{folder}3"}}, {{"text": "{folder}4"}}]')
        (tmp_path / folder / "a #1.txt").write_text(f"first of {folder}")
        (tmp_path / folder / "a #2.txt").write_text(f"second of {folder}")
    summary = run(capsys, "--input", tmp_path / "a", tmp_path / "b", "--output", tmp_path / "out")
    assert (summary["in"], summary["dropped"]) == (14, {})
    urls = {document.url for document in documents_of(tmp_path / "out")}
    assert {"file:a/0001.txt", "file:b/0001.txt", "file:b/rows.jsonl:1", "file:b/rows.jsonl:1:2"} < urls


@pytest.mark.parametrize("bad", ['{"url": "http://b.org/", "text": "t", "n": ' + "1" * 5000 + "}", "[" * 100_000])
def test_a_line_that_no_parser_takes_is_one_unreadable_line(tmp_path, capsys, bad):
    (tmp_path / "a.jsonl").write_text("\n".join([line("http://a.org/", "a"), bad, line("http://c.org/", "c")]))
    summary = run(capsys, "--input", tmp_path, "--output", tmp_path / "out")
    assert (summary["out"], summary["dropped"]) == (2, {"unreadable": 1})


def test_metadata_nested_too_deep_makes_its_text_unreadable(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "a.json").write_text("[" * 100_000)
    (tmp_path / "b.txt").write_text("b")
    assert run(capsys, "--input", tmp_path, "--output", tmp_path / "out")["dropped"] == {"unreadable": 1}


def test_the_key_that_names_the_url_of_a_text_wins_over_a_key_url(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "a.json").write_text(json.dumps({"link": "http://a.org/", "url": "http://other.org/"}))
    run(capsys, "--input", tmp_path, "--output", tmp_path / "out", "--url-key", "link")
    assert [document.url for document in documents_of(tmp_path / "out")] == ["http://a.org/"]


def test_a_large_corpus_is_read_in_a_bounded_number_of_tasks(tmp_path):
    files = [tmp_path / f"{number}.jsonl" for number in range(1000)]
    groups = file_groups(files, [15 << 20] * len(files))
    assert len(groups) <= 2 * MOST_TASKS
    assert [path for group in groups for path in group] == files


def test_each_url_is_kept_once_the_first_time(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text("\n".join([line("http://a.org/", "first"), line("http://a.org/#x", "second")]))
    (tmp_path / "b.jsonl").write_text("\n".join([line("http://A.org:80", "third"), line("http://a.org/b", "other")]))
    summary = run(capsys, "--input", tmp_path, "--output", tmp_path / "out", "--shards", 3)
    assert summary["dropped"] == {"duplicate_url": 2}
    assert sorted(document.text for document in documents_of(tmp_path / "out")) == ["first", "other"]


def test_every_record_is_accounted_for(tmp_path, capsys):
    rows = [line("http://a.org/1", "a"), line("http://a.org/1", "b"), line("http://a.org/2", "  "), "{"]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    summary = run(capsys, "--input", tmp_path / "a.jsonl", "--output", tmp_path / "out")
    assert summary["dropped"] == {"duplicate_url": 1, "empty": 1, "unreadable": 1}
    assert summary["in"] == summary["out"] + sum(summary["dropped"].values()) == 4
    receipts = [row for shard in sorted((tmp_path / "out/dropped").iterdir()) for row in read_documents(shard)]
    assert [(row.url, row.metadata["reason"], row.metadata.get("kept_row")) for row in receipts] == [
        ("http://a.org/1", "duplicate_url", 1),
        ("http://a.org/2", "empty", None),
        ("file:a.jsonl:4", "unreadable", None),
    ]


def test_which_of_several_keys_held_the_text_is_counted(tmp_path, capsys):
    """Files with the text under different keys took one run each."""
    (tmp_path / "a.jsonl").write_text('{"content": "a"}\n{"text": "b"}\n{"data": {"story": "c"}, "id": 7}\n')
    arguments = ("--text-key", "text", "content", "data.story", "--url-key", "url", "id")
    summary = run(capsys, "--input", tmp_path, "--output", tmp_path / "out", *arguments)
    assert summary["notes"] == {
        "URL from id": 1,
        "named by file": 2,
        "text from content": 1,
        "text from data.story": 1,
    }
    assert {document.url: document.text for document in documents_of(tmp_path / "out")} == {
        "file:a.jsonl:1": "a",
        "file:a.jsonl:2": "b",
        "id:7": "c",
    }


def test_a_url_under_another_key_is_pointed_at(tmp_path, capsys):
    """HPLT's records have theirs under `u`, trafilatura's under `source`: they were named by the file in silence."""
    (tmp_path / "a.jsonl").write_text(
        '{"u": "https://a.org/1", "ts": "x", "text": "a"}\n{"u": "https://a.org/2", "text": "b"}\n'
    )
    summary = run(capsys, "--input", tmp_path / "a.jsonl", "--output", tmp_path / "out")
    assert summary["notes"] == {"named by file": 2}
    (problem,) = summary["problems"]
    assert problem.endswith(
        "a.jsonl: its documents are named by the file, though 'u' holds a URL: --url-key u takes it."
    )
    summary = run(capsys, "--input", tmp_path / "a.jsonl", "--output", tmp_path / "all", "--url-key", "u")
    assert (summary["notes"], summary["problems"]) == ({}, [])


@pytest.mark.parametrize("flag", ["--text-key", "--url-key"])
def test_an_empty_key_is_refused(tmp_path, capsys, flag):
    assert main(["merge", "--input", str(tmp_path), "--output", str(tmp_path / "out"), flag, ""]) == 2
    assert f"{flag} must name at least one key" in capsys.readouterr().err


def test_the_shard_of_a_document_does_not_depend_on_the_number_of_files(tmp_path, capsys):
    rows = [line(f"http://a.org/{number}", f"text {number}") for number in range(50)]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.jsonl").write_text("\n".join(rows))
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "a.jsonl").write_text("\n".join(rows[:20]))
    (tmp_path / "two" / "b.jsonl").write_text("\n".join(rows[20:]))
    for name in ("one", "two"):
        run(capsys, "--input", tmp_path / name, "--output", tmp_path / f"{name}.out", "--shards", 4)
    for shard in (tmp_path / "one.out").glob("part-*"):
        assert shard.read_bytes() == (tmp_path / "two.out" / shard.name).read_bytes()


def test_metadata_nested_too_deep_to_write_is_unreadable_alone(tmp_path, webtext):
    """JSON that could be read, but nests too deep to be written with its bad characters left out, stopped a merge."""
    deep = "[" * 900 + "]" * 900
    bad = '{"text": "half \\ud800", "deep": ' + deep + "}"
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n' * 20 + bad + "\n")
    done = webtext("merge", "--input", tmp_path / "a.jsonl", "--output", tmp_path / "out", "--json", "--workers", 1)
    assert (done.json["out"], done.json["dropped"]) == (20, {"unreadable": 1})
    assert "a.jsonl: metadata nested too deep to write" in done.json["problems"][0]


# Large files


def many_rows(count: int = 300) -> list[str]:
    """Rows with and without URLs, some repeated, some that can't be read, some empty lines."""
    rows = [line(f"http://a.org/{number % 200}", f"text {number} " + "word " * (number % 9)) for number in range(count)]
    for number in range(0, count, 7):
        rows[number] = json.dumps({"text": f"without a URL {number}"})
    rows[50], rows[51], rows[60] = "", "{broken", rows[60] + rows[61]
    return rows


def small_parts(monkeypatch) -> None:
    monkeypatch.setattr("webtext_prep.documents.formats.compression.CHUNK_BYTES", 700)
    for name in ("BYTES_PER_PART", "BYTES_PER_STREAM"):
        monkeypatch.setattr(f"webtext_prep.stages.merge.{name}", 1000)


def problems_of(summary: dict) -> list[str]:
    return [re.sub(r"/[^ ]*/", "", problem) for problem in summary["problems"]]


def table_of_rows(delimiter: str) -> str:
    """The same as a table, with texts of several lines; and what a table may hold by mistake."""
    found = io.StringIO()
    table = csv.DictWriter(found, ["url", "text", "note"], delimiter=delimiter, lineterminator="\n")
    table.writeheader()
    for number, row in enumerate(many_rows()):
        if row.endswith("}") and row.count("}") == 1:
            note = 'said "no",\n\nand\tleft; ' * (number % 3)
            table.writerow({"note": note, **json.loads(row)})
        if number % 40 == 7:
            found.write(
                ["", "one cell\n", 'a "quote" in it\n', '"closed" and more\n', "\n\n", '"open\n'][number // 40 % 6]
            )
    return found.getvalue()


def json_of_rows(name: str) -> str:
    """The same as one list, as values one after another, or as the lines that they are."""
    values = [json.loads(row) for row in many_rows() if row.endswith("}") and row.count("}") == 1]
    match name.split(".")[0]:
        case "list":
            return json.dumps([*values, 5, None, "\u00fc", 6], indent=1, ensure_ascii=False)
        case "values":
            return "\n\n".join(json.dumps(value, indent=2) for value in values) + " 12  34"
        case "broken":
            return json.dumps(values)[:-1]
        case "behind":
            return json.dumps(values, indent=1) + " {}"
    return "\n".join(many_rows())


JSON_KINDS = ["list.json", "list.json.gz", "values.json", "lines.json", "broken.json", "behind.json"]
KINDS = ["a.jsonl", "a.jsonl.zst", "a.ndjson.gz", "a.parquet", "a.csv", "A.CSV.gz", "a.tsv", "bom.csv", "utf-16.csv"]


@pytest.mark.parametrize("name", [*KINDS, *JSON_KINDS])
def test_a_large_file_is_read_in_parts_to_the_same_documents(tmp_path, capsys, monkeypatch, contents, name):
    """A file of 100 GB was one task: one core, and all of it again after a kill."""
    (tmp_path / "kind=large").mkdir()
    path, data = tmp_path / "kind=large" / name, "\n".join(many_rows()).encode()
    if ".json" in name and "jsonl" not in name:
        data = json_of_rows(name).encode()
    if "sv" in name.lower():
        encoding = {"utf-16.csv": "utf-16", "bom.csv": "utf-8-sig"}.get(name, "utf-8")
        data = table_of_rows({"a.tsv": "\t", "bom.csv": ";"}.get(name, ",")).encode(encoding)
    if name.endswith("parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = [{"url": None, **json.loads(row)} for row in many_rows() if row.endswith("}") and row.count("}") == 1]
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=20)
    else:
        pack = {"zst": zstandard.compress, "gz": gzip.compress}.get(name.rsplit(".", 1)[1], bytes)
        path.write_bytes(pack(data))
    (tmp_path / "kind=large" / "b.jsonl").write_text(line("http://a.org/1", "later"))
    (tmp_path / "kind=large" / "B.txt").write_text("before")
    settings = ("--input", tmp_path / "kind=large", "--shards", 4)
    whole = run(capsys, *settings, "--output", tmp_path / "whole")
    small_parts(monkeypatch)
    run_map, phases = Job.map, {}

    def noted(self, phase, call, tasks, **rest):
        phases[phase] = len(tasks)
        return run_map(self, phase, call, tasks, **rest)

    monkeypatch.setattr(Job, "map", noted)
    parts = run(capsys, *settings, "--output", tmp_path / "parts")
    assert phases["read"] > 5 or name in ("broken.json", "behind.json")
    for key in ("in", "out", "dropped"):
        assert whole[key] == parts[key]
    assert problems_of(whole) == problems_of(parts)
    found = [contents(tmp_path / folder) for folder in ("whole", "parts")]
    of_shards = [{name: data for name, data in files.items() if name.startswith("part-")} for files in found]
    assert of_shards[0] == of_shards[1]
    dropped = [
        sorted(str(row) for shard in (tmp_path / folder / "dropped").iterdir() for row in read_documents(shard))
        for folder in ("whole", "parts")
    ]
    assert dropped[0] == dropped[1]


# Damaged files


def streams(name: str, size: int = 10, count: int = 30) -> list[bytes]:
    """JSON lines compressed as the name says, so many in each stream, with checksums."""
    lines = [line(f"http://a.org/{n}", f"text {n} " + uuid.uuid5(uuid.NAMESPACE_URL, str(n)).hex) for n in range(count)]
    data = ["".join(f"{row}\n" for row in lines[at : at + size]).encode() for at in range(0, count, size)]
    if name.endswith("gz"):
        return [gzip.compress(some, mtime=0) for some in data]
    return [zstandard.ZstdCompressor(write_checksum=True).compress(some) for some in data]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def urls(folder: Path) -> set[str]:
    return {document.url for document in documents_of(folder)}


def numbers(*ranges: range) -> set[str]:
    return {f"http://a.org/{n}" for some in ranges for n in some}


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.jsonl.gz", "a.ndjson.gz", "a.json.gz"])
@pytest.mark.parametrize("is_large", [False, True])
def test_a_flipped_bit_costs_the_records_of_its_stream(tmp_path, capsys, monkeypatch, name, is_large):
    """It cost the whole file, and the run."""
    first, second, third = streams(name)
    (tmp_path / "in").mkdir()
    data = flipped(first + second + third, len(first) + len(second) // 2)
    (tmp_path / "in" / name).write_bytes(data)
    (tmp_path / "in" / "b.jsonl").write_text(line("http://b.org/", "b"))
    if is_large:
        small_parts(monkeypatch)
    summary = run(capsys, "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert urls(tmp_path / "out") == numbers(range(10), range(20, 30)) | {"http://b.org/"}
    assert (summary["in"], summary["out"], summary["dropped"]) == (22, 21, {"damaged": 1})
    assert summary["notes"]["damaged_bytes"] == len(second)
    place = f"bytes {len(first):,} to {len(first) + len(second):,}"
    assert problems_of(summary) == [
        f"{name}, {place}: damaged, and the records there are lost, all others kept; fetch it again, and run the "
        "command again."
    ]
    (row,) = documents_of(tmp_path / "out" / "dropped")
    assert row.metadata["reason"] == "damaged" and "lost" in row.metadata["problem"]


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.jsonl.gz"])
def test_no_record_is_made_of_two_where_streams_cut_lines(tmp_path, capsys, name):
    """As in BGZF, whose members are of some size whatever they hold."""
    text = "".join(line(f"http://a.org/{n}", f'{{"text": "inner {n}"}}') + "\n" for n in range(60)).encode()
    pack = gzip.compress if name.endswith("gz") else zstandard.compress
    size = 97
    packed = [pack(text[at : at + size]) for at in range(0, len(text), size)]
    begins = [sum(map(len, packed[:at])) for at in range(len(packed))]
    lines = text.splitlines()
    ends = [sum(len(row) + 1 for row in lines[: at + 1]) for at in range(len(lines))]
    for lost in range(0, len(packed), 3):
        folder = tmp_path / str(lost)
        folder.mkdir()
        (folder / name).write_bytes(flipped(b"".join(packed), begins[lost] + 1))
        run(capsys, "--input", folder, "--output", folder / "out")
        begin, end = lost * size, (lost + 1) * size
        # A record is whole without the newline after it, too.
        whole = {n for n, stop in enumerate(ends) if stop - 1 <= begin or stop - len(lines[n]) - 1 >= end}
        assert urls(folder / "out") == {f"http://a.org/{n}" for n in whole}


def test_a_damaged_file_gives_the_same_shards_whoever_reads_it(tmp_path, webtext, contents):
    first, second, third = streams("a.jsonl.gz")
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / "in" / f"{number}.jsonl.gz").write_bytes(flipped(first + second * number + third, 40))
    settings = ("--input", tmp_path / "in", "--shards", 3, "--allow-unreadable")
    for workers in (1, 2):
        assert webtext("merge", *settings, "--output", tmp_path / f"{workers}", "--workers", workers).code == 0
    one, two = ({name: data for name, data in contents(tmp_path / f"{n}").items() if "part" in name} for n in (1, 2))
    assert one == two and len(one) > 3


def test_what_is_damaged_must_not_be_much_of_the_input(tmp_path, webtext):
    first, *others = streams("a.jsonl.zst", size=1)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl.zst").write_bytes(flipped(first, 20))
    (tmp_path / "in" / "b.jsonl.zst").write_bytes(b"".join(others))
    # Read in the same task, as it is.
    (tmp_path / "in" / "c.jsonl.gz").write_bytes(gzip.compress(line("http://c.org/", "c").encode("utf-16")))
    done = webtext("merge", "--input", tmp_path / "in", "--output", tmp_path / "out", "--json")
    assert done.code == 0 and done.json["dropped"] == {"damaged": 1} and done.json["out"] == 30
    done = webtext("merge", "--input", tmp_path / "in" / "a.jsonl.zst", "--output", tmp_path / "out2")
    assert done.code == 2
    assert f"{len(first)} of {len(first)} bytes could not be read: " in done.err and "--allow-unreadable" in done.err
    assert not list((tmp_path / "out2").glob("part-*"))


def test_a_damaged_file_of_a_stage_is_refused(tmp_path, webtext):
    """What webtext wrote can be made again: it is never taken in part."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(b"".join(map(gzip.decompress, streams("a.gz"))))
    for kind in ("jsonl.zst", "parquet"):
        assert webtext("merge", "--input", tmp_path / "in", "--output", tmp_path / kind, "--format", kind).code == 0
        (shard,) = shards_in(tmp_path / kind)
        shard.write_bytes(flipped(shard.read_bytes(), 200))
        for given in (tmp_path / kind, shard):
            done = webtext("merge", "--input", given, "--output", tmp_path / "out", "--allow-unreadable")
            assert done.code == 2 and f"{shard} is not a valid" in done.err
        done = webtext("clean", "--input", shard, "--output", tmp_path / "cleaned")
        assert done.code == 2
        assert ("of a file of your own `webtext merge` keeps what is whole" in done.err) == (kind != "parquet")
    # Parquet of ours is known without its folder.
    sealed = tmp_path / "a.parquet"
    sealed.write_bytes(shard.read_bytes())
    (tmp_path / "b.jsonl.gz").write_bytes(flipped(streams("a.gz")[0], 30))
    done = webtext(
        "merge", "--input", sealed, tmp_path / "b.jsonl.gz", "--output", tmp_path / "out", "--allow-unreadable"
    )
    assert done.code == 2 and f"{sealed} is not a valid Parquet file" in done.err


@pytest.mark.parametrize("is_large", [False, True])
def test_a_flipped_bit_in_parquet_costs_the_rows_of_its_group(tmp_path, capsys, monkeypatch, is_large):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"url": f"http://a.org/{n}", "text": f"text {n} {uuid.uuid5(uuid.NAMESPACE_URL, str(n))}"} for n in range(90)
    ]
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    options = {"row_group_size": 30, "write_page_checksum": True, "use_dictionary": False}
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    group = pq.read_metadata(path).row_group(1)
    data = path.read_bytes()
    begins = [group.column(at).data_page_offset for at in (0, 1)]
    if is_large:
        small_parts(monkeypatch)
    for at in (begins[0] + 100, begins[1] + 200, begins[1] + 1):
        path.write_bytes(flipped(data, at))
        summary = run(capsys, "--input", path.parent, "--output", tmp_path / f"{at}", "--shards", 1)
        assert urls(tmp_path / f"{at}") == numbers(range(30), range(60, 90))
        assert summary["out"] == 60 and set(summary["dropped"]) == {"damaged"}
        assert problems_of(summary)[0].startswith("a.parquet, rows 31 to ")
        for document in documents_of(tmp_path / f"{at}"):
            assert document.text.startswith(f"text {document.url.removeprefix('http://a.org/')} ")
    assert summary["problems"][0].count("rows") == 1 or is_large
    # The footer: nothing can be read.
    path.write_bytes(data[:-10] + bytes(10))
    (path.parent / "b.jsonl").write_text(line("http://b.org/", "b"))
    summary = run(capsys, "--input", path.parent, "--output", tmp_path / "footer")
    assert (summary["out"], summary["dropped"]) == (1, {"damaged": 1})
    assert "a.parquet: it is not a valid Parquet file (" in summary["problems"][0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt.gz", b"A text of some words. " * 9),
        ("a.csv.gz", b"url,text\nhttp://a.org/1,a\nhttp://a.org/2,b\n"),
        ("a.json.gz", json.dumps([{"url": f"http://a.org/{n}", "text": "t"} for n in range(9)], indent=0).encode()),
    ],
)
def test_another_damaged_file_is_lost_as_a_whole_and_alone(tmp_path, capsys, name, content):
    (tmp_path / "in").mkdir()
    half = len(content) // 2
    first, second = gzip.compress(content[:half]), gzip.compress(content[half:])
    (tmp_path / "in" / name).write_bytes(first + flipped(second, 20))
    (tmp_path / "in" / "b.jsonl").write_text(line("http://b.org/", "b"))
    summary = run(capsys, "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert (summary["in"], summary["out"], summary["dropped"]) == (2, 1, {"damaged": 1})
    (problem,) = problems_of(summary)
    assert problem.startswith(f"{name}: it is ") and "nothing of it is taken" in problem


def test_files_between_the_phases_are_one_a_task(tmp_path, webtext, monkeypatch):
    """Each reading task had a compressor of a megabyte open for each shard: 60 GB for 64 workers and 1,024 shards."""
    (tmp_path / "a.jsonl").write_text("\n".join(line(f"http://a.org/{n}", "a") for n in range(100)))

    def no_end(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "_record", no_end)
    command = ("merge", "--input", tmp_path / "a.jsonl", "--output", tmp_path / "out", "--workers", 1)
    assert webtext(*command, "--shards", 200).code == 130
    assert len(list((tmp_path / "out/.state/scratch").rglob("*"))) == 1


def test_texts_of_files_with_one_name_stay_apart(tmp_path, capsys):
    """Two datasets without URLs have files of the same names: merged one by one and then together, all of the second
    was dropped."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.jsonl").write_text(f'{{"text": "First of {folder}."}}\n{{"text": "The same."}}\n')
        run(capsys, "--input", tmp_path / folder, "--output", tmp_path / "out" / folder)
    done = run(capsys, "--input", tmp_path / "out" / "a", tmp_path / "out" / "b", "--output", tmp_path / "both")
    assert (done["out"], done["dropped"]) == (3, {"duplicate_url": 1})
    assert sorted((document.url, document.text) for document in documents_of(tmp_path / "both")) == [
        ("file:train.jsonl:1", "First of a."),
        ("file:train.jsonl:1", "First of b."),
        ("file:train.jsonl:2", "The same."),
    ]


def test_a_page_comes_whole_or_in_pieces(tmp_path, capsys):
    """Merge took the pieces of one page for one document. Numbers may have become texts or floats on the way."""
    rows = [
        line("http://a/", "a1", piece=1),
        line("http://a/#x", "a2", piece=2.0),
        line("http://a/", "again", piece="2"),
        line("http://a/", "whole"),
        line("http://b/", "whole b"),
        line("http://b/", "b1", piece=1),
        line("http://c/", "c1", piece="1-2"),
        line("http://c/", "c2", piece="1-3"),
        line("http://d/", "no number", piece="of cake"),
        line("http://d/", "no number", piece=True),
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    done = run(capsys, "--input", tmp_path / "rows.jsonl", "--output", tmp_path / "out")
    assert done["dropped"] == {"duplicate_url": 4}
    assert [document.text for document in documents_of(tmp_path / "out")] == [
        *("a1", "a2", "whole b", "c1", "c2", "no number"),
    ]


@pytest.mark.parametrize(
    ("text", "is_page"),
    [
        ("<!DOCTYPE html>\n<html>", True),
        ('\ufeff \n<?xml version="1.0"?>\n<!-- a -->\n<HTML lang="en">', True),
        ("<body class='x'><p>A page", True),
        ("The tag <html> begins a page.", False),
        ("<headline>Not a page</headline>", False),
        ("<!-- " * 3000, False),
    ],
)
def test_pages_that_are_named_as_texts_are_noticed(webtext, tmp_path, text, is_page):
    """HTML saved as .txt was taken for text, tags and all, without a word."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(text)
    found = webtext("merge", tmp_path / "texts", "--output", tmp_path / "out", "--workers", 1)
    assert found.code == 0
    assert ("a.txt: looks like HTML, and is taken as it is" in found.err) == is_page
    assert ("`webtext extract`" in found.err) == is_page
