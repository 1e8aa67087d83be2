"""A stage that the power goes off at: it goes on to the same bytes, and nobody takes a part for the whole."""

import contextlib

from jobs import job_of
from practice_stages import Shout
from tests.power_cuts import Watched

from webtext_prep.commands.opt_outs import OptOuts
from webtext_prep.documents.folders.inputs import find_inputs
from webtext_prep.documents.folders.shards import is_document_shard
from webtext_prep.errors import InputError
from webtext_prep.opt_outs.hosts import Host, read_hosts
from webtext_prep.stages.dedup import Dedup
from webtext_prep.storage.stores import local

EVERY = 7
"""Of so many disks one is gone on from."""


def files_of(folder) -> dict[str, bytes]:
    """What a user sees of an output."""
    seen = (path for path in folder.rglob("*") if ".state" not in path.parts and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path.read_bytes() for path in seen if path.is_file()}


def is_taken_for_finished(output) -> bool:
    with contextlib.suppress(InputError):
        return bool(find_inputs([str(output)], accepts=is_document_shard, kinds="documents").files)
    return False


def check(stage, inputs, root, monkeypatch, tmp_path) -> None:
    """Run the stage over one input and then over another, cut that off everywhere, and go on from some of the disks."""
    root.mkdir()
    states = [dict[str, bytes]()]
    with Watched(root) as watched:
        for folder in inputs:
            job_of(stage, [folder], root / "out").run()
            states.append(files_of(root / "out"))
            watched.say("done")
    boots = tmp_path / "boot"
    monkeypatch.setattr(local, "BOOT_ID_FILE", boots)
    for number, (promises, disk) in enumerate(watched.disks(chances=1, every=2)):
        found, era = files_of(root / "out"), min(promises, len(inputs) - 1)
        if promises == len(inputs):
            assert found == states[promises], disk
        elif is_taken_for_finished(root / "out"):
            assert found in states[1:], disk
        if number % EVERY == 0:
            boots.write_text(f"start {number}")
            local.boot_id.cache_clear()
            job_of(stage, [inputs[era]], root / "out").run()
            assert files_of(root / "out") == states[era + 1], disk
    local.boot_id.cache_clear()


def test_a_stage_goes_on_to_the_same_bytes_and_no_part_is_taken_for_the_whole(write_shards, tmp_path, monkeypatch):
    """The record of the earlier output, removed first, came back beside a new shard, and the next stage read both."""
    first, second = (write_shards([["a", "b"], texts], name="".join(texts)) for texts in (["c"], ["d", "e"]))
    check(Shout(), [first, second], tmp_path / "root", monkeypatch, tmp_path)


def test_what_dedup_keeps_between_its_phases_is_not_believed_after_a_restart(write_shards, tmp_path, monkeypatch):
    """Its blocks, of which no marker spoke, were empty then: the same command failed for ever."""
    texts = [" ".join(f"word{number % (7 + length)}" for number in range(40)) for length in range(4)]
    shards = write_shards([texts[:2], [*texts[2:], texts[0]]])
    output = tmp_path / "root" / "out"
    job = job_of(Dedup(), [shards], output)
    monkeypatch.setattr(Dedup, "components", lambda *arguments: 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        job.run()
    monkeypatch.undo()
    (blocks,) = (path for path in (output / ".state" / "scratch").iterdir() if path.name == "blocks.npy")
    blocks.write_bytes(b"")
    monkeypatch.setattr(local, "BOOT_ID_FILE", tmp_path / "boot")
    (tmp_path / "boot").write_text("another")
    local.boot_id.cache_clear()
    try:
        assert job_of(Dedup(), [shards], output).run().tally.kept == 4
    finally:
        local.boot_id.cache_clear()


def test_no_half_answer_of_a_host_is_believed_and_none_of_an_earlier_command(tmp_path, monkeypatch):
    """The answers of the command before, removed at its end, came back, and the hosts were not asked again."""
    root, urls, answers = tmp_path / "root", tmp_path / "urls.txt", ["ok", "http_403"]
    root.mkdir()
    urls.write_text("".join(f"http://{name}.org/1\n" for name in "abc"))
    command, now = OptOuts(urls=(str(urls),), output=str(root / "below" / "hosts.jsonl")), [answers[0], lambda: None]

    async def ask(self, origins, note):
        for origin in origins:
            note(Host(origin, outcome=now[0], asked_at="2026"))
            now[1]()

    def said():
        path = root / "below" / "hosts.jsonl"
        return [(host.host, host.outcome) for host in read_hosts(path)] if path.exists() else []

    monkeypatch.setattr(OptOuts, "_ask", ask)
    states = [[]]
    with Watched(root) as watched:
        for now[0] in answers:
            now[1] = lambda: watched.say("asked")
            command.find()
            states.append(said())
            watched.say("done")
    now[1] = lambda: None
    for promises, disk in watched.disks(chances=1):
        era = min(promises // 4, 1)
        assert said() in states[promises // 4 : promises // 4 + 2], disk
        now[0] = answers[era]
        command.find()
        assert said() == states[era + 1], disk
        assert not (root / "below" / "hosts.jsonl.part").exists(), disk
