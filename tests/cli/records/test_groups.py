"""Groups from the shell: which there are, how far behind they are, and reading as a member."""

from __future__ import annotations

import json

import pytest

import logstore
from logstore.cli import main


def run(*words: str) -> int:
    return main(list(words))


@pytest.fixture
def orders(url: str) -> str:
    with logstore.open(url) as store:
        topic = store.create_topic("orders", partitions=2)
        for number in range(6):
            topic.append(b"%d" % number, partition=number % 2)
    return url


def test_P01_cat_as_a_member_prints_what_is_new_and_remembers_it(
    orders: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("cat", "orders", "--group", "shell", "-c", "4") == 0
    first = capfd.readouterr().out.split()
    assert len(first) == 4
    assert run("cat", "orders", "--group", "shell", "-f", "%t/%p %s\\n") == 0
    rest = [line.split()[1] for line in capfd.readouterr().out.splitlines()]
    assert sorted(first + rest) == ["0", "1", "2", "3", "4", "5"]
    assert run("cat", "orders", "--group", "shell") == 0
    assert capfd.readouterr().out == ""


def test_P03_lag_for_each_partition(orders: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("cat", "orders", "--group", "shell") == 0
    assert run("append", "orders", "late", "-p", "1") == 0
    capfd.readouterr()
    assert run("lag", "shell", "--json") == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [
        (row["topic"], row["partition"], row["position"], row["end"], row["records"]) for row in rows
    ] == [
        ("orders", 0, 3, 3, 0),
        ("orders", 1, 3, 4, 1),
    ]
    assert rows[0]["seconds"] == 0
    assert rows[1]["seconds"] > 0
    assert run("lag") == 0
    assert capfd.readouterr().out.splitlines()[0].split() == [
        "group",
        "topic",
        "partition",
        "position",
        "end",
        "records",
        "seconds",
        "member",
    ]


def test_groups_are_listed_shown_and_deleted(orders: str, capfd: pytest.CaptureFixture[str]) -> None:
    with logstore.open(orders) as store, store.group("workers", "orders", member="w1"):
        assert run("groups", "--json") == 0
        (row,) = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert (row["group"], row["members"], row["topics"]) == ("workers", 1, ["orders"])
        assert run("groups", "workers") == 0
        assert "w1      orders/0, orders/1" in capfd.readouterr().out
        assert run("groups", "workers", "--delete", "--yes") == 2
        assert "has members: w1" in capfd.readouterr().err
    capfd.readouterr()
    assert run("groups", "workers") == 0
    assert "workers has no members now; `logstore lag workers`" in capfd.readouterr().out
    assert run("groups", "workers", "--delete") == 2
    assert run("groups", "--delete", "--yes") == 2
    assert run("groups", "workers", "--delete", "--yes") == 0
    capfd.readouterr()
    assert run("groups") == 0
    assert capfd.readouterr().out == ""


def test_mistakes_are_said(orders: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("lag", "nobody") == 1
    assert "no group 'nobody'" in capfd.readouterr().err
    assert run("cat", "nothing", "--group", "g") == 1
    assert "there is no topic 'nothing'" in capfd.readouterr().err
    assert run("lag", "a/b") == 2
    assert "no name for a group" in capfd.readouterr().err
    assert run("cat", "orders", "--group", "g", "-o", "3") == 2
    assert "leave out -o and -p" in capfd.readouterr().err
