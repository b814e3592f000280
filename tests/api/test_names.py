"""The names that users see and those that our own packages share: both lists, exactly.

A new public name is a promise, so it is added here on purpose. What is needed inside is added to the internal interface.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import typing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import logstore
import logstore.aio
import logstore.groups
from logstore.atomic import AtomicBlock
from logstore.config import StoreSettings, TopicOptions
from logstore.engine.partition.internal import Partition
from logstore.topic import TopicInternals
from tests.support.blocks import ROOT

SURFACE: dict[type, str] = {
    logstore.Store: "add_partitions alter_topic atomic close collect_garbage config create_topic delete_topic flush group "
    "health metrics objects topic topics writer_metrics",
    logstore.Topic: "append append_many arrow_batches config name partition partitions records splits tail to_arrow",
    logstore.groups.Group: "assignment close commit lag member name pause poll resume seek",
    logstore.PartitionLog: "append append_batches buffered_high_watermark delete_before durable_high_watermark flush "
    "lost_ranges low_watermark marks offset_for_timestamp open_writer partition read records refresh reopen replicated "
    "segments submit tail topic unconfirmed",
    logstore.aio.Store: "add_partitions alter_topic atomic blocking close collect_garbage create_topic delete_topic flush "
    "group health metrics topic topics writer_metrics",
    AtomicBlock: "append receipts",
    logstore.aio.AtomicBlock: "append blocking receipts",
    logstore.aio.Topic: "append append_many blocking name partition partitions records tail",
    logstore.aio.Group: "assignment blocking close commit lag member name pause poll resume seek",
    logstore.aio.PartitionLog: "append append_batches blocking buffered_high_watermark delete_before durable_high_watermark "
    "flush lost_ranges low_watermark marks offset_for_timestamp open_writer read records refresh reopen submit tail "
    "unconfirmed wait_durable",
}
INTERNAL: dict[type, str] = {
    Partition: "ack_timeout add_listener after_fork_in_child append_one begin_append begin_append_batches begin_checked "
    "begin_close begin_flush bounds chain_to_load check_records check_writable clock closed config deadline delete_before "
    "end end_now end_seen end_state epoch fetch_epoch finish_append "
    "finish_close finish_flush follow_interval follows give_up health health_report high_watermark is_compacted lane "
    "lane_name lanes late maintenance now_ms objects offset_for_timestamp open_writer owner_name partition paths read "
    "read_cached readable_end refresh refresh_since release remove_listener "
    "replaced replicated reserved_end state stopped submit_batches take_view topic topic_deleted wait_durable when_durable "
    "writer",
    TopicInternals: "begin_append_many check_partitions cursor descriptor forget is_older_than logs many partition pick",
}
MODULES = ("errors", "testing", "aio", "groups", "ingest", "upsert", "objects", "writers")


def names(cls: type) -> set[str]:
    """What an instance has: members of the class, and what `__init__` sets."""
    found = set(dir(cls))
    for each in cls.__mro__[:-1]:
        found |= set(re.findall(r"self\.(\w+)(?:: [^=\n]+)? = ", inspect.getsource(each)))
        found |= set(getattr(each, "__annotations__", ()))
    return {name for name in found if not name.startswith("_")}


@pytest.mark.parametrize("cls", [*SURFACE, *INTERNAL], ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_the_names_of_both_surfaces_are_these(cls: type) -> None:
    assert names(cls) == set((SURFACE | INTERNAL)[cls].split())


@pytest.mark.parametrize("cls", [*SURFACE, *INTERNAL], ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_each_of_them_says_what_it_is(cls: type) -> None:
    for name in names(cls):
        found = inspect.getattr_static(cls, name, None)
        if callable(found) or isinstance(found, property):
            assert inspect.getdoc(found), f"{cls.__name__}.{name} has no docstring"


def test_an_instance_shows_the_surface_and_nothing_else() -> None:
    with logstore.open("memory://names") as store:
        topic = store.create_topic("t")
        for thing in (store, topic, topic.partition(0)):
            assert {name for name in dir(thing) if not name.startswith("_")} == set(
                SURFACE[type(thing)].split()
            )


def test_all_public_names_are_in_the_api_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    for cls in (logstore.Store, logstore.Topic, logstore.PartitionLog, logstore.groups.Group):
        block = re.search(rf"^::: logstore\.(?:groups\.)?{cls.__name__}\n((?:    .*\n)*)", page, re.MULTILINE)
        assert block is not None
        members = re.search(r"members: \[(.*)\]", block[1])
        assert members is not None
        assert sorted(members[1].split(", ")) == SURFACE[cls].split()
    for name in {*SURFACE[logstore.aio.PartitionLog].split()} - {"blocking"}:
        assert re.search(rf"\b{name}\b", page), f"docs/api.md does not have {name}"


def test_dir_shows_the_api_and_nothing_else() -> None:
    assert set(dir(logstore)) == {*logstore.__all__, *MODULES}
    assert sorted(logstore.__all__) == sorted(set(logstore.__all__))
    for name in MODULES:
        module = import_module(f"logstore.{name}")
        assert dir(module) == sorted(set(module.__all__)), name
        assert all(hasattr(module, each) for each in module.__all__), name
        assert not [each for each in module.__all__ if each.startswith("_")], name


@pytest.mark.parametrize(
    ("settings", "config"), [(StoreSettings, logstore.StoreConfig), (TopicOptions, logstore.TopicConfig)]
)
def test_the_typed_settings_are_the_fields_of_the_config(settings: Any, config: Any) -> None:
    assert typing.get_type_hints(settings) == typing.get_type_hints(config)
    assert settings.__optional_keys__ == frozenset(typing.get_type_hints(config))


WRONG = """
import logstore
import logstore.aio

logstore.open("memory://x", flush_interval=1.0, writer="shared")
logstore.open("memory://x", flush_intervall=1.0)
logstore.open("memory://x", writer="sharred")
logstore.aio.open("memory://x", flush_intervall=1.0)
store = logstore.open("memory://x")
store.create_topic("t", retention_bytes=None)
store.create_topic("t", partition=4)
store.alter_topic("t", retention_second=1.0)
log = store.topic("t").partition(0)
log.tail(start="end")
log.tail(start="beginning")
log.begin_close()
"""


def test_a_type_checker_finds_misspelt_settings_before_they_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WRONG)
    cache = ROOT / ".mypy_cache"  # of the last `make lint`, if there was one
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), str(script)]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    found = re.findall(r"^script\.py:(\d+): error: (.*?)  \[", checked.stdout, re.MULTILINE)
    said = {WRONG.splitlines()[int(line) - 1]: what for line, what in found}
    assert list(said) == [
        'logstore.open("memory://x", flush_intervall=1.0)',
        'logstore.open("memory://x", writer="sharred")',
        'logstore.aio.open("memory://x", flush_intervall=1.0)',
        'store.create_topic("t", partition=4)',
        'store.alter_topic("t", retention_second=1.0)',
        'log.tail(start="beginning")',
        "log.begin_close()",
    ], checked.stdout + checked.stderr
    assert 'did you mean "flush_interval"?' in said['logstore.open("memory://x", flush_intervall=1.0)']


def test_a_misspelt_setting_names_the_nearest_when_it_runs() -> None:
    wrong: Any = {"flush_intervall": 1.0}
    with pytest.raises(TypeError, match="'flush_intervall', did you mean 'flush_interval'"):
        logstore.open("memory://names", **wrong)
    with pytest.raises(TypeError, match="unknown setting 'zzz'; there are: writer, ack"):
        logstore.open("memory://names", zzz=1)  # type: ignore[call-arg]
    with logstore.open("memory://names") as store:
        for wrong, meant in (
            ({"partition": 4}, "partitions"),
            ({"retention_second": 1.0}, "retention_seconds"),
        ):
            with pytest.raises(TypeError, match=f"did you mean '{meant}'"):
                store.create_topic("u", **wrong)
        store.create_topic("v")
        with pytest.raises(TypeError, match="did you mean 'segment_bytes'"):
            store.alter_topic("v", segment_byte=1)  # type: ignore[call-arg]
