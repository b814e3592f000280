"""Show the main job on a local folder: append, read-after-ack, watermarks, crash and recovery, fencing.

Everything it prints has just happened: a child process is really killed with SIGKILL in the middle of its work.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import logstore
from logstore.cli.terminal.output import Output
from logstore.engine.partition.partition_log import PartitionLog

# Appends at three ack levels, tells its parent, and waits to be killed: the flush interval is too long to help it.
_CHILD = """
import sys, time, logstore
folder, wal = sys.argv[1:3]
store = logstore.open(folder, wal_dir=wal, flush_interval=3600)
log = store.topic("orders").partition(0)
log.append([b"durable-%d" % n for n in range(3)], ack="durable")
log.append([b"local-%d" % n for n in range(2)], ack="local")
log.append([b"buffered-%d" % n for n in range(2)], ack="buffered")
print("ready", log.durable_high_watermark, log.buffered_high_watermark, flush=True)
time.sleep(600)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", action="store_true", help="keep the folder, and say where it is")


def run(args: argparse.Namespace, out: Output) -> int:
    folder = Path(tempfile.mkdtemp(prefix="logstore-demo-"))
    show = _Show(out)
    try:
        _read_after_ack(str(folder / "store"), show)
        _crash(folder, show)
        _fencing(str(folder / "store"), show)
    finally:
        if args.keep:
            show.say(
                f"the store is in {folder / 'store'}: try  logstore inspect orders --store {folder / 'store'}"
            )
        else:
            shutil.rmtree(folder)
    return 0


class _Show:
    """Colour where there is a terminal, plain text elsewhere."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._colour = out.stream.isatty() and "NO_COLOR" not in os.environ and not out.as_json
        self._step = 0

    def title(self, text: str) -> None:
        self._step += 1
        line = f"{self._step}. {text}"
        self._out.row({"step": self._step, "title": text}, "\n" + self._paint("1;36", line))

    def say(self, text: str) -> None:
        self._out.row({"step": self._step, "text": text}, self._filled("   ", text))

    def good(self, text: str) -> None:
        self._out.row({"step": self._step, "ok": text}, self._filled("   " + self._paint("32", "✓ "), text))

    def marks(self, log: PartitionLog, when: str) -> None:
        low, durable, buffered = log.low_watermark, log.durable_high_watermark, log.buffered_high_watermark
        fields = {"step": self._step, "when": when, "low": low, "durable": durable, "buffered": buffered}
        high = f"durable {self._paint('33', str(durable))}   buffered {self._paint('35', str(buffered))}"
        self._out.row(fields, f"   marks {when:16} low {low}   {high}")

    def _filled(self, before: str, text: str) -> str:
        """Lines that a terminal need not break in the middle of a word."""
        if not self._out.stream.isatty():
            return before + text
        room = shutil.get_terminal_size().columns - len("   ✓ ")
        return before + ("\n" + " " * len("   ✓ ")).join(textwrap.wrap(text, room))

    def _paint(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colour else text


def _read_after_ack(url: str, show: _Show) -> None:
    show.title("Append, and read back before anything is flushed")
    with logstore.open(url, flush_interval=3600) as store:
        log = store.create_topic("orders").partition(0)
        receipt = log.append(logstore.Record(b"paid", key=b"order-17"))
        show.say(
            f"append(b'paid')                  offset {receipt.offset}, ack: {receipt.durability} (it is in the store)"
        )
        show.marks(log, "after durable")
        quick = log.append([b"packed", b"shipped"], ack="buffered")
        show.say(
            f"append([b'packed', b'shipped'])  offsets {quick.offset}-{quick.last_offset}, ack: {quick.durability}"
        )
        show.marks(log, "before the flush")
        found = log.read(quick.offset)
        values = [record.value for record in found.records()]
        _check(values == [b"packed", b"shipped"] and found.source == "buffer")
        show.good(f"read({quick.offset}) gives {values}, served from the {found.source}")
        log.flush()
        show.marks(log, "after the flush")
        found = log.read(quick.offset)
        _check([record.value for record in found.records()] == values and found.source == "segment")
        show.good(f"the same read is now served from the {found.source}; offsets and bytes are the same")


def _crash(folder: Path, show: _Show) -> None:
    show.title("Kill -9 in the middle of it, and recover")
    url, wal = str(folder / "store"), str(folder / "wal")
    child = subprocess.Popen([sys.executable, "-c", _CHILD, url, wal], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None, "asked for a pipe"
    _, durable, buffered = child.stdout.readline().split()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    show.say(
        f"a child appended 3 durable, 2 local and 2 buffered records (durable {durable}, buffered {buffered}); killed"
    )
    with logstore.open(url, wal_dir=wal) as store:
        log = store.topic("orders").partition(0)
        log.open_writer()
        values = [record.value for record in log.records(3)]
        show.marks(log, "after recovery")
        _check(
            values
            == [
                b"durable-0",
                b"durable-1",
                b"durable-2",
                b"local-0",
                b"local-1",
                b"buffered-0",
                b"buffered-1",
            ][: len(values)]
        )
        _check(len(values) >= 5)
        show.good(f"durable and local acks are all there: {[value.decode() for value in values if value]}")
        (lost,) = log.lost_ranges()
        show.good(
            f"the buffered ones are gone, and it says so: lost offsets {lost.start} to {lost.end - 1}, at most "
            f"{lost.end - lost.start} records, never used again"
        )
        show.say(
            "(a writer reserves offsets in blocks before it shows any, so nobody can have seen one that is given again)"
        )
        show.good(f"the next append gets offset {log.append(b'after the crash').offset}")


def _fencing(url: str, show: _Show) -> None:
    show.title("A second writer takes over; the first can do no harm")
    with logstore.open(url) as first, logstore.open(url) as second:
        first.topic("orders").partition(0).append(b"from the first")
        receipt = second.topic("orders").partition(0).append(b"from the second")
        try:
            first.topic("orders").partition(0).append(b"too late")
        except logstore.Fenced as fenced:
            show.good(f"Fenced: {fenced}")
        else:
            raise AssertionError("the first writer was not fenced")
        values = [record.value for record in second.topic("orders").partition(0).records(receipt.offset - 1)]
        _check(values == [b"from the first", b"from the second"])
        show.good(f"the log holds {[value.decode() for value in values if value]}, each once")


def _check(holds: bool) -> None:
    if not holds:
        raise AssertionError("the demo saw something that must not happen")
