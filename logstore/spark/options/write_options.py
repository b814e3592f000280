"""The options of `df.write` and `df.writeStream`, checked on the driver before a row is moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from logstore.config import MIB
from logstore.format.batches.codecs import CODEC_IDS
from logstore.layout.paths import check_topic_name
from logstore.spark.options.read_options import flag, named_options, path_of, whole_number
from logstore.spark.options.transaction import MAX_VERSION, Transaction

WRITE_OPTIONS = (
    "path",
    "topic",
    "compression",
    "maxBatchBytes",
    "txnAppId",
    "txnVersion",
    "takeOver",
    "includeHeaders",
)
_SPARKS_OWN = ("checkpointlocation", "queryname")  # of writeStream: they come along with ours


@dataclass(frozen=True, slots=True)
class WriteOptions:
    path: str
    topic: str | None
    compression: str
    max_batch_bytes: int
    transaction: Transaction | None
    take_over: bool = False


def write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """The options, or `ValueError` saying what is wrong and what is allowed."""
    ours = {key: value for key, value in given.items() if key.lower() not in _SPARKS_OWN}
    options = named_options(ours, WRITE_OPTIONS, "writing")
    flag(
        options, "includeHeaders", True
    )  # as Kafka's sink takes it: headers are written where there is such a column
    compression = options.get("compression", "zstd")
    if compression not in CODEC_IDS:
        raise ValueError(f"compression={compression!r}: it is one of {', '.join(CODEC_IDS)}")
    app, version = options.get("txnAppId"), options.get("txnVersion")
    if (app is None) != (version is None):
        raise ValueError("txnAppId and txnVersion go together: whose write this is, and which of its writes")
    if app == "":
        raise ValueError("txnAppId is empty: name the application whose writes are numbered")
    if app is not None and streaming:
        raise ValueError("txnAppId is for df.write: a stream's batches are numbered by its checkpoint")
    topic = options.get("topic")
    if topic is not None:
        check_topic_name(topic)
    return WriteOptions(
        path=path_of(options),
        topic=topic,
        compression=compression,
        max_batch_bytes=whole_number("maxBatchBytes", options.get("maxBatchBytes", str(1 * MIB)), 1024),
        transaction=None
        if app is None
        else Transaction(_numbered(app, topic), whole_number("txnVersion", version or "", 0, MAX_VERSION)),
        take_over=flag(options, "takeOver", False),
    )


def _numbered(app: str, topic: str | None) -> str:
    """What an application's numbers count. As in Delta Lake they count for each target: one `foreachBatch` that writes to
    two topics gives both writes the same number. A write whose rows say their topics is one, whatever those are."""
    return f"app {app}" if topic is None else f"topic {topic}, app {app}"
