"""B13, B17 with the clients that Kafka's users have, as `make compat` runs them. They download: so only in `make soak`."""

from __future__ import annotations

import pytest

from tests.compat.__main__ import CLIENTS, tried

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
OF_COMPACTED_TOPICS = ("connect", "streams", "quix", "faust")


def judge(name: str) -> None:
    """What was not run has shown nothing."""
    lines = tried(name)
    if lines[0].startswith("SKIPPED"):
        pytest.skip(lines[0])
    assert [line for line in lines if not line.startswith("ok ")] == []


@pytest.mark.parametrize("name", [name for name in CLIENTS if name not in OF_COMPACTED_TOPICS])
def test_B17_clients_of_others_pass_with_their_defaults(name: str) -> None:
    judge(name)


@pytest.mark.parametrize("name", OF_COMPACTED_TOPICS)
def test_B13_frameworks_whose_state_lies_in_compacted_topics_go_on_in_a_second_life(name: str) -> None:
    """B17 too: Connect and Streams are among them."""
    judge(name)
