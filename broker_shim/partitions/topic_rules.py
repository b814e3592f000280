"""What a topic's settings ask of the records that are appended to it: one object for all its partitions, so that a change
reaches all of them at once.
"""

from __future__ import annotations

from logstore.format.batches.codecs import CODEC_IDS
from logstore.format.batches.rewriting import Rewrite
from logstore.layout.catalog import TopicDescriptor

AS_PRODUCED = "producer"
LEVELS = {"gzip": "-1", "lz4": "9", "zstd": "3"}
"""Kafka's own, where a topic names a codec and no level. -1 is the codec's."""
_CODECS = {**CODEC_IDS, "uncompressed": CODEC_IDS["none"]}


class TopicRules:
    """`max_bytes`: the largest batch. `rewrite`: how batches are stored, or None: as they come. Event loop only."""

    __slots__ = ("_default_max_bytes", "_revision", "max_bytes", "rewrite")

    def __init__(self, topic: TopicDescriptor, default_max_bytes: int) -> None:
        self._default_max_bytes = default_max_bytes
        self._revision = -1
        self.learn(topic)

    def learn(self, topic: TopicDescriptor) -> None:
        """The topic as the store has it now."""
        if topic.revision <= self._revision:
            return
        self._revision = topic.revision
        values = dict(topic.kafka)
        self.max_bytes = _whole(values.get("max.message.bytes"), self._default_max_bytes)
        codec = values.get("compression.type", AS_PRODUCED)
        level = _whole(values.get(f"compression.{codec}.level"), int(LEVELS.get(codec, "-1")))
        stamps = values.get("message.timestamp.type") == "LogAppendTime"
        wanted = Rewrite(
            _CODECS.get(codec), level if codec in LEVELS and (codec, level) != ("gzip", -1) else None, stamps
        )
        self.rewrite = None if wanted == Rewrite() else wanted


def _whole(text: str | None, default: int) -> int:
    """What was set is a number, unless a later release has other ideas: that must not stop this one."""
    try:
        return default if text is None else int(text)
    except ValueError:
        return default
