"""`webtext inspect`: what a folder of shards or a pair of token files holds."""

import json

import pytest

from indexed_tokens import IndexedTokensWriter, Tokenizer
from webtext_prep.cli import main
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import write_documents


@pytest.fixture
def shards(tmp_path):
    folder = tmp_path / "documents"
    with write_documents(folder / "part-00000.jsonl.zst") as writer:
        for number in range(5):
            writer.write(Document(f"http://a.org/{number}", f"Text number {number}.", {"title": f"T{number}"}))
    return folder


def inspect(capsys, *arguments):
    assert main(["inspect", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_folder_shows_counts_and_the_first_documents(shards, capsys):
    found = inspect(capsys, shards, "--samples", 1)
    assert (found["shards"], found["documents"], found["characters"]) == (1, 5, 5 * len("Text number 0."))
    assert found["samples"] == [{"url": "http://a.org/0", "title": "T0", "text": "Text number 0."}]


def test_a_finished_stage_shows_its_settings_and_reasons(shards, tmp_path, capsys):
    main(["clean", "--input", str(shards), "--output", str(tmp_path / "out"), "--min-tokens", "0", "--language", "any"])
    capsys.readouterr()
    found = inspect(capsys, tmp_path / "out")
    assert (found["stage"], found["in"], found["out"], found["settings"]["min_tokens"]) == ("clean", 5, 5, 0)


def test_what_changed_since_an_older_output_is_shown(shards, tmp_path, capsys, webtext):
    """An upgrade of an extractor is seen before hours of tokenizing."""
    texts = {0: "Text number 0.", 1: "-- Text 1", 2: "Text number 2.\nRead more\n" + "x" * 300, 7: "Another."}
    with write_documents(tmp_path / "old" / "part-00000.jsonl.zst") as writer:
        for number, text in texts.items():
            writer.write(Document(f"http://a.org/{number}", text))
        writer.write(Document("http://a.org/1", "A second text of that URL is not looked at."))
    found = inspect(capsys, shards, "--compare", tmp_path / "old")
    counts = ("documents", "not_in_old", "only_in_old", "same_text", "changed")
    assert [found[name] for name in counts] == [5, 2, 1, 1, 2]
    assert {name: count for name, count in found["of_the_changed"].items() if count} == {
        "less than half": 1,
        "110% to twice": 1,
    }
    assert found["characters"]["new"] == 70
    samples = {sample["url"]: sample for sample in found["samples"]}
    assert samples["http://a.org/1"]["text"] == "- -- Text 1\n+ Text number 1."
    assert samples["http://a.org/2"]["characters"] == "325 -> 14"
    assert samples["http://a.org/2"]["text"].split("\n")[0] == "- Read more"
    assert inspect(capsys, shards, "--compare", shards)["changed"] == 0
    assert "give one of them" in webtext("inspect", shards, "--compare", shards, "--dropped", "x").sentence
    assert "nowhere" in webtext("inspect", shards, "--compare", tmp_path / "nowhere").sentence


def test_a_single_shard_can_be_looked_at(shards, capsys):
    assert inspect(capsys, shards / "part-00000.jsonl.zst")["documents"] == 5


@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_token_files_show_lengths_and_decoded_text(tmp_path, capsys, ending):
    ids = Tokenizer.gpt2().encode("Hello world")
    with IndexedTokensWriter(tmp_path / "c_text_document") as writer:
        writer.add([*ids, 50256])
        writer.add([*ids, *ids, 50256])
    found = inspect(capsys, f"{tmp_path}/c_text_document{ending}")
    assert (found["documents"], found["tokens"], found["token_type"]) == (2, 8, "uint16")
    assert found["tokens_per_sequence"] == {"least": 3, "median": 4.0, "most": 5}
    assert found["samples"][0]["text"] == "Hello world<|endoftext|>"


def test_token_files_are_verified_against_their_record(write_shards, tmp_path, webtext):
    """Nothing on record told whether token files are still what was written: a flipped bit is another token."""
    write_shards([[Document("http://a.org/", "Some words of a text.")]])
    assert webtext("tokenize", "--input", tmp_path / "input", "--output", tmp_path / "c").code == 0
    assert webtext("inspect", tmp_path / "c", "--verify", "--json").json["verified"] is True
    for suffix in (".bin", ".idx"):
        place = tmp_path / f"c_text_document{suffix}"
        whole = place.read_bytes()
        place.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if suffix == ".bin" else whole + b"\1")
        done = webtext("inspect", tmp_path / "c", "--verify")
        assert (done.code, f"{place} has " in done.sentence) == (2, True)
        place.write_bytes(whole)
    (tmp_path / "c_text_document.json").unlink()
    done = webtext("inspect", tmp_path / "c", "--verify")
    assert (done.code, "c_text_document.json has no checksums" in done.sentence) == (2, True)
    assert webtext("inspect", tmp_path / "c").code == 0
    assert webtext("inspect", tmp_path / "input", "--verify").code == 2


def test_people_get_lines_to_read(shards, capsys):
    assert main(["inspect", str(shards)]) == 0
    shown = capsys.readouterr().out
    assert "documents           5" in shown
    assert "| Text number 0." in shown


def test_what_is_missing_is_named(tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "absent")]) == 2
    assert "absent" in capsys.readouterr().err


def test_tokens_of_another_vocabulary_are_named(tmp_path, capsys):
    with IndexedTokensWriter(tmp_path / "c") as writer:
        writer.add([60000])
    assert main(["inspect", str(tmp_path / "c.idx")]) == 2
    assert "token 60000" in capsys.readouterr().err


def test_a_list_of_urls_can_be_looked_at(tmp_path, capsys):
    (tmp_path / "urls.txt").write_text("http://a.org/1\nhttp://a.org/2\n")
    assert inspect(capsys, tmp_path / "urls.txt", "--samples", 1)["samples"] == [{"url": "http://a.org/1", "text": ""}]


def test_what_a_document_holds_does_not_steer_the_terminal(webtext, write_shards):
    """An escape sequence in a document was printed as it is."""
    folder = write_shards([[Document("http://a/", "red \x1b[31m text\x9b2J", {"title": "a\x07b"})]])
    shown = webtext("inspect", folder).out
    assert "red \ufffd[31m text\ufffd2J" in shown
    assert "a\ufffdb" in shown


# What was dropped


def write(folder, *documents):
    with write_documents(folder / "part-00000.jsonl.zst") as writer:
        for document in documents:
            writer.write(document)
    return str(folder)


LONG = " ".join(f"word{number}" for number in range(300))


def run(*words):
    assert main([*map(str, words), "--workers", "1"]) == 0


def test_dropped_documents_are_shown_with_what_decided_and_their_text(tmp_path, capsys):
    given = write(tmp_path / "in", Document("http://a.org/", LONG), Document("http://b.org/", "Too short."))
    run("clean", "--input", given, "--output", tmp_path / "out", "--language", "any")
    capsys.readouterr()
    found = inspect(capsys, tmp_path / "out", "--dropped", "too_short")
    assert found["dropped"] == {"too_short": 1}
    (sample,) = found["samples"]
    assert (sample["url"], sample["reason"], sample["text"]) == ("http://b.org/", "too_short", "Too short.")
    assert (sample["tokens"], sample["min_tokens"]) == (3, 128)


def test_duplicates_are_shown_with_what_they_repeat(tmp_path, capsys):
    documents = [Document(f"http://{name}.org/", LONG + " end" * (name == "a")) for name in "abc"]
    run("dedup", "--input", write(tmp_path / "in", *documents), "--output", tmp_path / "out")
    capsys.readouterr()
    found = inspect(capsys, tmp_path / "out", "--dropped", "duplicate", "--samples", 1)["samples"]
    assert [(sample["url"], sample["duplicate_of"]) for sample in found] == [("http://b.org/", "http://a.org/")]
    assert found[0]["text"].startswith("word0")


def test_urls_that_were_dropped_are_shown(tmp_path, capsys):
    (tmp_path / "urls.txt").write_text(
        "http://a.org/x\nhttp://a.org/b.jpg\nhttp://A.org/x\nno address\nhttp://a.org/y\n"
    )
    run("blacklist", "--input", tmp_path / "urls.txt", "--output", tmp_path / "urls")
    capsys.readouterr()
    shown = {
        reason: [sample["url"] for sample in inspect(capsys, tmp_path / "urls", "--dropped", reason)["samples"]]
        for reason in ("blocked_extension", "duplicate", "malformed")
    }
    assert shown == {
        "blocked_extension": ["http://a.org/b.jpg"], "duplicate": ["http://A.org/x"], "malformed": ["no address"],
    }  # fmt: skip


def test_repeated_documents_of_merge_are_shown(tmp_path, capsys):
    documents = [Document("http://a.org/", "one"), Document("http://a.org/#top", "two")]
    run("merge", "--input", write(tmp_path / "in", *documents), "--output", tmp_path / "out")
    capsys.readouterr()
    assert inspect(capsys, tmp_path / "out", "--dropped", "duplicate_url")["samples"][0]["text"] == "two"


def test_of_several_copies_each_is_shown_with_its_own_text(tmp_path, capsys):
    documents = [Document(f"http://a.org/{'#top' * (text == 'three')}", text) for text in (" ", "one", "two", "three")]
    run("merge", "--input", write(tmp_path / "in", *documents), "--output", tmp_path / "out")
    capsys.readouterr()
    found = inspect(capsys, tmp_path / "out", "--dropped", "duplicate_url")["samples"]
    assert [sample["text"] for sample in found] == ["two", "three"]


def test_receipts_that_are_lost_or_damaged_come_again_by_the_stage(tmp_path, webtext):
    given = write(tmp_path / "in", Document("http://a.org/", LONG), Document("http://b.org/", "Too short."))
    run("clean", "--input", given, "--output", tmp_path / "out", "--language", "any")
    (receipts,) = (tmp_path / "out" / "dropped").iterdir()
    receipts.write_bytes(receipts.read_bytes()[:-5])
    done = webtext("inspect", tmp_path / "out", "--dropped", "too_short")
    assert done.code == 2 and "run that stage again with --restart" in done.sentence
    receipts.unlink()
    done = webtext("inspect", tmp_path / "out", "--dropped", "too_short")
    assert done.code == 2 and "receipts of them are missing: run `webtext clean` again with --restart" in done.sentence


def test_a_reason_that_there_was_not_names_those_there_were(tmp_path, capsys):
    given = write(tmp_path / "in", Document("http://a.org/", LONG), Document("http://b.org/", "Too short."))
    run("clean", "--input", given, "--output", tmp_path / "out", "--language", "any")
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out"), "--dropped", "boring"]) == 2
    assert "dropped nothing as 'boring': choose among its reasons (too_short 1)" in capsys.readouterr().err


DEEP = "[" * 100_000


@pytest.mark.parametrize("command", ["inspect", "clean", "report"])
@pytest.mark.parametrize(
    "content",
    [
        DEEP,
        '{"stage": "clean", "facts": ' + DEEP,
        '{"stage": ["clean"]}',
        '{"stage": "clean", "shards": ["part-00000.jsonl.zst"]}',
        '{"stage": "clean", "shards": {"part-00000.jsonl.zst": "5"}}',
        '{"stage": "clean", "in": "5", "out": 5}',
        '{"stage": "clean", "dropped": ["empty"]}',
        '{"stage": "clean", "inputs": [5]}',
        '{"stage": "clean", "inputs": {"sha256": 5}}',
        '{"stage": "clean", "facts": 5}',
        '{"stage": "clean", "settings": []}',
    ],
    ids=lambda content: content[:50],
)
def test_a_record_that_is_no_record_is_one_sentence(webtext, write_shards, tmp_path, command, content):
    """A stage.json nested too deeply, or with values of other types, was an internal error."""
    write_shards([[Document("http://a.org/", "Some words of a text.")]])
    (tmp_path / "input" / "stage.json").write_text(content)
    place = (
        ["--input", tmp_path / "input", "--output", tmp_path / "out"] if command == "clean" else [tmp_path / "input"]
    )
    options = ["--output", tmp_path / "page.html"] if command == "report" else []
    done = webtext(command, *place, *options)
    assert (done.code, "internal error" in done.sentence, "stage.json" in done.sentence) == (2, False, True)
    assert len(done.sentence) < 500


def test_damaged_token_files_and_prose_are_no_sight_to_see(write_shards, tmp_path, webtext):
    """Both were shown, with exit code 0, unless --verify was given."""
    write_shards([[Document("http://a.org/", "Some words of a text.")]])
    assert webtext("tokenize", "--input", tmp_path / "input", "--output", tmp_path / "c").code == 0
    assert webtext("inspect", tmp_path / "c", "--json").json["verified"] is True
    for suffix in (".bin", ".idx"):
        place = tmp_path / f"c_text_document{suffix}"
        whole = place.read_bytes()
        for at in range(0, len(whole), 3):
            place.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            assert webtext("inspect", tmp_path / "c").code == 2, (suffix, at)
        place.write_bytes(whole)
    place.with_name("c_text_document.json").unlink()
    assert webtext("inspect", tmp_path / "c", "--json").json["verified"] is False
    notes = tmp_path / "notes.txt"
    notes.write_text("\nmy precious notes\nare no list\n")
    assert f"{notes} holds no URL (it begins with 'my precious notes')" in webtext("inspect", notes).sentence
    notes.write_text("# mine\nhttp://a.org/\nand something else\n")
    assert webtext("inspect", notes, "--json").json["documents"] == 2
