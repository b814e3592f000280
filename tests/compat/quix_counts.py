"""Quix Streams with state, which lies in a compacted changelog: `python quix_counts.py HOST:PORT`.

It counts words by key, is stopped, loses its local state, and goes on from the changelog.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from quixstreams import Application

SENT = ["a", "b", "a"] * 20


def app(state: str) -> Any:
    return Application(
        broker_address=sys.argv[1],
        consumer_group="quix",
        auto_offset_reset="earliest",
        state_dir=state,
        processing_guarantee=sys.argv[2],
        loglevel="ERROR",
    )


def counted(turn: int) -> dict[str, int]:
    """What the changelog and this turn's words come to. Its state folder is a new one each time."""
    found: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        application = app(folder)
        topic = application.topic(
            f"words-{sys.argv[2]}",
            key_serializer="str",
            value_serializer="str",
            key_deserializer="str",
            value_deserializer="str",
        )
        with application.get_producer() as producer:
            for word in SENT:
                message = topic.serialize(key=word, value=word)
                producer.produce(topic.name, message.value, message.key)
        frame = application.dataframe(topic)

        def count(word: str, state: Any) -> int:
            seen = int(state.get("seen", 0)) + 1
            state.set("seen", seen)
            found[word] = seen
            return seen

        frame.apply(count, stateful=True)
        application.run(count=len(SENT), timeout=60)
    return found


for turn in (1, 2):
    expected = {word: SENT.count(word) * turn for word in set(SENT)}
    found = counted(turn)
    name = f"stateful counts, {sys.argv[2]}, turn {turn}"
    print(f"ok {name}" if found == expected else f"failed {name}: {found}, not {expected}", flush=True)
