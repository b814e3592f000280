"""The `logstore` command as a person and as a script uses it: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import logstore
from logstore.cli import COMMANDS, main, program
from logstore.format.batches.area import MAX_TIMESTAMP_MS
from logstore.format.stored.segment import SegmentFlags, SegmentHeader
from logstore.process.presence import Machine
from tests.support.engine.harness import crash
from tests.support.patience import PATIENCE_S


def run(*words: str) -> int:
    return main(list(words))


def test_create_append_cat_tell_the_same_story(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("create", "orders", "-p", "2") == 0
    assert run("append", "orders", "paid", "-k", "order-17", "-H", "source=web") == 0
    assert run("append", "orders", "--tombstone", "-k", "order-17") == 0
    capfd.readouterr()
    assert run("cat", "orders", "--json") == 0
    first, second = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (first["key"], first["value"], first["headers"]) == ("order-17", "paid", [["source", "web"]])
    assert (second["key"], second["value"], second["offset"]) == ("order-17", None, 1)
    assert first["partition"] == second["partition"] == 1  # as Kafka's partitioner says


def test_cat_ranges_and_template(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with logstore.open(url) as store:
        store.create_topic("t").partition(0).append(
            [logstore.Record(b"v%d" % n, key=b"k", timestamp_ms=1000 + n) for n in range(10)]
        )
    for start, expected in (("-2", ["8", "9"]), ("7", ["7", "8", "9"]), ("@1009", ["9"]), ("end", [])):
        assert run("cat", "t", "-o", start, "-f", "%o\\n") == 0
        assert capfd.readouterr().out.split() == expected
    assert run("cat", "t", "-c", "1", "-f", "%t/%p/%o %k=%s @%T 100%%\\n") == 0
    assert capfd.readouterr().out == "t/0/0 k=v0 @1000 100%\n"


def test_bytes_that_are_no_text_survive_json(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with logstore.open(url) as store:
        store.create_topic("t").append(b"\xff\x00")
    assert run("cat", "t", "--json") == 0
    assert json.loads(capfd.readouterr().out)["value"] == {"base64": "/wA="}


def test_append_reads_lines_with_keys_from_standard_input(url: str) -> None:
    run("create", "t")
    command = [sys.executable, "-m", "logstore.cli", "append", "t", "-K", ":", "--json"]
    done = subprocess.run(
        command, input="a:1\nb:2\nnokey\n", capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["offset"] for line in done.stdout.splitlines()] == [0, 1, 2]
    with logstore.open(url, writer="read_only") as store:
        found = [(record.key, record.value) for record in store.topic("t").partition(0).records()]
    assert found == [(b"a", b"1"), (b"b", b"2"), (None, b"nokey")]


def append_from_a_shell(*words: str) -> subprocess.CompletedProcess[str]:
    """As a process of its own, like everybody's."""
    command = [sys.executable, "-m", "logstore.cli", "append", "t", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_W17_a_shell_append_beside_a_service_is_refused_and_says_how_to_insist(url: str) -> None:
    with logstore.open(url) as service:
        service.create_topic("t").append(b"from the service")
        refused = append_from_a_shell("debug")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"PartitionInUse: t/0: process {os.getpid()} " in refused.stderr
        assert "--take-over" in refused.stderr
        assert service.topic("t").append(b"still here").offset == 1
        insisted = append_from_a_shell("debug", "--take-over")
        assert (insisted.returncode, insisted.stdout) == (0, "t/0 @ 2 (durable)\n")
        with pytest.raises(logstore.Fenced):
            service.topic("t").append(b"stopped, as was asked for")


def test_W17_a_shell_append_beside_shared_writers_joins_them(url: str) -> None:
    with logstore.open(url, writer="shared") as one, logstore.open(url, writer="shared") as two:
        one.create_topic("t").append(b"from one")
        two.topic("t").append(b"from two")
        assert append_from_a_shell("debug").stdout == "t/0 @ 2 (durable)\n"
        assert [store.topic("t").append(b"goes on").offset for store in (one, two)] == [3, 4]


def test_W17_a_shell_append_behind_a_service_that_has_ended_needs_no_word(url: str) -> None:
    with logstore.open(url) as service:
        service.create_topic("t").append(b"from the service")
    assert append_from_a_shell("by hand").stdout == "t/0 @ 1 (durable)\n"
    assert append_from_a_shell("and again").stdout == "t/0 @ 2 (durable)\n"


def test_W17_a_shell_append_says_that_it_has_closed_so_that_the_next_machine_need_not_ask(
    url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In containers, each of which is a machine of its own to the others."""
    with logstore.open(url) as service:
        service.create_topic("t")

    def machine(name: bytes) -> None:
        here = Machine(name.ljust(16), 1, 1)
        monkeypatch.setattr("logstore.process.presence.this_machine", lambda: here)

    machine(b"the first")
    assert run("append", "t", "by hand") == 0
    machine(b"the second")
    assert run("append", "t", "by hand") == 0
    with logstore.open(url) as service:
        service.topic("t").append(b"from a service")
    machine(b"the third")
    assert run("append", "t", "by hand") == 1
    assert "has not said that it closed" in capfd.readouterr().err
    assert run("append", "t", "by hand", "--take-over") == 0


def test_tail_ends_after_count(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with logstore.open(url) as store:
        store.create_topic("t").partition(0).append([b"a", b"b", b"c"])
    assert run("tail", "t", "-o", "beginning", "-c", "3") == 0
    assert capfd.readouterr().out == "a\nb\nc\n"


def test_inspect_shows_a_lanes_entry(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with logstore.open(url) as store:
        topic = store.create_topic("t", 2)
        topic.partition(1).append([b"a", b"b"])
        entry = topic.partition(1).segments()[0].key.partition("@")[0]
    assert run("inspect", entry, "--json") == 0
    header, part = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (header["kind"], header["seq"], part["offsets"]) == ("data", 0, "0-1")
    assert part["partition"].endswith("/1/")


def test_offsets_inspect_topics(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with logstore.open(url) as store:
        log = store.create_topic("t").partition(0)
        log.append([b"a", b"b"])
        key = log.segments()[0].key
    assert run("offsets", "t", "--json") == 0
    assert json.loads(capfd.readouterr().out) == {
        "partition": 0,
        "low": 0,
        "durable": 2,
        "epoch": 1,
        "unconfirmed": [],
        "lost": [],
    }
    for words, expected in (((), "-"), (("--json",), None)):  # nothing is as new as that
        assert run("offsets", "t", "--at", "@2999-01-01", *words) == 0
        shown = capfd.readouterr().out
        assert (json.loads(shown)["at"] if words else shown.split()[-1]) == expected
    assert run("topics", "--json") == 0
    listed = json.loads(capfd.readouterr().out)
    assert (
        listed.items()
        >= {"topic": "t", "partitions": 1, "offsets": 2, "records": 2, "writer": "exclusive"}.items()
    )
    assert run("inspect", "t") == 0
    assert key in capfd.readouterr().out
    assert run("inspect", key, "--json") == 0
    segment, batch = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (segment["base_offset"], segment["end_offset"], batch["records"]) == (0, 2, 2)


def test_inspect_shows_a_topic_whatever_its_timestamps_say_and_whichever_object_is_damaged(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with logstore.open(url, lanes=0) as store:  # a lane's entry knows the times of its parts, damaged or not
        log = store.create_topic("t").partition(0)
        for stamp in (0, MAX_TIMESTAMP_MS, 1):
            log.append(logstore.Record(b"v", timestamp_ms=stamp))
        middle = log.segments()[1].key
    assert run("inspect", middle, "--json") == 0
    assert json.loads(capfd.readouterr().out.splitlines()[1])["newest"] == f"{MAX_TIMESTAMP_MS} ms"
    (Path(url) / middle).write_bytes((Path(url) / middle).read_bytes()[:-1])
    assert run("inspect", "t", "--json") == 0
    newest = [json.loads(line)["newest"] for line in capfd.readouterr().out.splitlines()]
    assert newest == ["1970-01-01T00:00:00.000+00:00", "unknown", "1970-01-01T00:00:00.001+00:00"]


def test_C12_offsets_tells_what_a_crash_may_take_and_what_it_took(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = logstore.open(url, flush_interval=3600)
    log = before.create_topic("t").partition(0)
    log.append(b"stored")
    log.append(b"not stored yet", ack="buffered")
    crash(before)
    assert run("offsets", "t", "--json") == 0
    (unconfirmed,) = json.loads(capfd.readouterr().out)["unconfirmed"]
    with logstore.open(url) as store:
        taken = store.topic("t").partition(0).append(b"after").offset
    assert unconfirmed == {"start": 1, "end": taken}
    assert run("offsets", "t", "--json") == 0
    assert json.loads(capfd.readouterr().out)["lost"] == [{"start": 1, "end": taken}]
    assert run("offsets", "t") == 0
    assert capfd.readouterr().out.splitlines()[1].endswith(f"  at most {taken - 1}: 1-{taken - 1}")


def test_a_damaged_descriptor_hides_no_other_topic(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with logstore.open(url) as store:
        for name in "abc":
            log = store.create_topic(name).partition(0)
            for n in range(12):
                log.append(b"%d" % n)
    (Path(url) / "catalog" / "b").write_bytes(b"damaged")
    assert run("topics", "--json") == 1
    printed = capfd.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert [(row["topic"], row["partitions"], row["offsets"]) for row in rows] == [
        ("a", 1, 12),
        ("b", None, None),
        ("c", 1, 12),
    ]
    assert "logstore topics: CorruptData: catalog/b" in printed.err
    assert run("verify", "--json") == 1
    a, b, c = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (a["records"], b["key"], c["records"]) == (12, "catalog/b", 12)
    assert run("compact", "c") == 0
    capfd.readouterr()
    assert run("gc", "--grace", "0", "--json") == 0
    gone = [json.loads(line)["key"] for line in capfd.readouterr().out.splitlines()]
    assert gone
    assert all(key.startswith(("topics/c/", "lanes/")) for key in gone)
    assert run("verify", "--json") == 1
    a, b, c = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (a["records"], b["key"], c["records"]) == (12, "catalog/b", 12)
    assert run("gc", "b") == 1


def test_compact_then_gc(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with logstore.open(url) as store:
        log = store.create_topic("t").partition(0)
        for n in range(12):
            log.append(b"%d" % n)
    assert run("compact", "t", "--json") == 0
    assert json.loads(capfd.readouterr().out)["merged_segments"] == 12
    assert run("gc", "--dry-run") == 0
    assert capfd.readouterr().out == ""
    assert run("gc", "--dry-run", "--grace", "0", "--json") == 0
    listed = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len(listed) == 12
    assert not any(row["deleted"] for row in listed)
    assert run("gc", "--grace", "0", "--json") == 0
    assert all(json.loads(line)["deleted"] for line in capfd.readouterr().out.splitlines())
    assert run("cat", "t") == 0
    assert capfd.readouterr().out.split() == [str(n) for n in range(12)]


def test_alter_changes_what_is_named_and_says_how_it_is_now(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run("create", "t", "--retention-seconds", "60", "--retention-bytes", "1000")
    capfd.readouterr()
    assert (
        run("alter", "t", "-p", "3", "--retention-seconds", "none", "--segment-bytes", "5000", "--json") == 0
    )
    assert json.loads(capfd.readouterr().out) == {
        "topic": "t",
        "partitions": 3,
        "retention_seconds": None,
        "retention_bytes": 1000,
        "segment_bytes": 5000,
        "compact": False,
        "tombstone_seconds": 86400.0,
        "compact_after_seconds": 0.0,
        "dirty_ratio": 0.5,
    }
    for words, message in (
        (("-p", "2"), "only become more"),
        (("--segment-bytes", "0"), "at least 1"),
        ((), "what"),
    ):
        assert run("alter", "t", *words) == 2
        assert message in capfd.readouterr().err
    assert run("alter", "nope", "-p", "2") == 1
    assert "UnknownTopic" in capfd.readouterr().err


def test_B13_a_compacted_topic_is_created_described_compacted_and_altered(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("create", "t", "--compact", "--tombstones", "1h") == 0
    with logstore.open(url) as store:
        log = store.topic("t").partition(0)
        for n in range(6):
            log.append(logstore.Record(b"%d" % n, key=b"%d" % (n % 2)))
    assert run("append", "t", "no key") == 1
    assert "KeyRequired" in capfd.readouterr().err
    assert run("describe", "t") == 0
    assert "compacted by key: tombstones for" in capfd.readouterr().out
    assert run("compact", "t", "--json") == 0
    assert json.loads(capfd.readouterr().out)["compacted_records"] == 3
    assert run("cat", "t", "-f", "%o %s\\n") == 0
    assert capfd.readouterr().out.split() == ["3", "3", "4", "4", "5", "5"]
    assert run("verify", "t") == 0
    assert "3 records read, 0 damaged" in capfd.readouterr().out
    with logstore.open(url, writer="read_only") as store:
        key = store.topic("t").partition(0).segments()[0].key
    assert run("inspect", key) == 0
    assert "SPARSE" in capfd.readouterr().out
    assert run("maintain", "t") == 0
    assert run("alter", "t", "--compact", "no", "--json") == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["compact"] is False
    assert run("alter", "t", "--compact", "maybe") == 2


def test_gc_finishes_a_deletion_that_was_interrupted(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with logstore.open(url, lanes=0) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"secret")
        store._catalog.delete("t")  # as far as `delete_topic` came
        fence, key = log._internal.paths.segment(0), log.segments()[0].key  # the fence says whose it was
    assert run("gc", "--dry-run", "--json") == 0
    assert [json.loads(line)["key"] for line in capfd.readouterr().out.splitlines()] == [fence, key]
    size = (Path(url) / key).stat().st_size
    assert run("gc", "t") == 0
    assert (Path(url) / key).stat().st_size < size
    header = SegmentHeader.parse((Path(url) / key).read_bytes())
    assert SegmentFlags.DELETED in header.flags, "a header stays, for a writer that sleeps"
    assert run("gc", "t") == 1
    assert "UnknownTopic" in capfd.readouterr().err


def test_delete_asks_first(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    run("create", "t")
    assert run("delete", "t") == 2
    assert run("delete", "t", "--yes") == 0
    assert run("cat", "t") == 1
    assert "UnknownTopic" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("cat", "nope"), 1, "UnknownTopic"),
        (("create", "bad/name"), 1, "InvalidTopicName"),
        (("create", "t", "-p", "-3"), 2, "partitions=-3"),
        (("cat", "t", "-o", "soon"), 2, "@MILLISECONDS"),
        (("topics", "--store", "gopher://x"), 1, "UnsupportedStore"),
    ],
)
def test_exit_codes(
    words: tuple[str, ...], code: int, message: str, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run("create", "t")
    capfd.readouterr()
    assert run(*words) == code
    assert message in capfd.readouterr().err


def test_without_a_store_it_asks_for_one(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOGSTORE_URL", raising=False)
    assert run("topics") == 2
    assert "LOGSTORE_URL" in capfd.readouterr().err


def test_bench_and_demo_run(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "--records", "2000", "--durable-appends", "16", "--json") == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert rows[-1]["what"] == "read back"
    assert run("topics") == 0
    assert "bench-" not in capfd.readouterr().out
    assert run("demo") == 0
    shown = capfd.readouterr().out
    assert "served from the buffer" in shown
    assert "lost offsets" in shown
    assert "Fenced" in shown


def test_the_list_of_commands_says_what_each_does_in_a_whole_sentence() -> None:
    commands = program()
    context = click.Context(commands)
    for name in COMMANDS:
        command = commands.get_command(context, name)
        assert command is not None
        said = command.short_help or ""
        assert said.endswith(".")
        assert said.removesuffix(".") in " ".join((command.help or "").split())
        assert said.count("(") == said.count(")"), said


def test_alter_names_the_settings_of_compaction_only_where_they_count(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, more in (("plain", []), ("compacted", ["--compact"])):
        assert run("create", name, *more) == 0
        capfd.readouterr()
        assert run("alter", name, "--retention", "3d") == 0
        shown = capfd.readouterr().out
        assert "retention 3 d" in shown
        assert ("dirty-ratio" in shown) == bool(more)
        assert f"compact {'yes' if more else 'no'}" in shown


def test_every_command_explains_itself(capfd: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            run(command, "--help")
        assert ended.value.code == 0
        assert command in capfd.readouterr().out


def test_a_command_imports_no_other_command_and_nothing_that_a_terminal_needs(url: str) -> None:
    """Start-up is what a script pays that calls it in a loop."""
    run("create", "t")
    code = (
        "import sys; from logstore.cli import main; assert main(['topics']) == 0; "
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    loaded = set(done.stderr.split())
    others = {f"logstore.cli.commands.{room}.{name}" for name, room in COMMANDS.items() if name != "topics"}
    assert "logstore.cli.commands.topics.topics" in loaded
    assert not loaded & (
        others | {"rich", "boto3", "botocore", "asyncio", "pyarrow", "argcomplete", "logstore.metrics"}
    )
