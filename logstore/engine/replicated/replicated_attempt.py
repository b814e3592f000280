"""What one commit of a replicated writer carries: source ranges that follow each other, as one segment.

Its header, and so its place in the chain and its id, stay the same until something is in that place: then whose id it is
tells a lost answer from a lost race.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from logstore.engine.host.counters import FlushDone
from logstore.engine.replicated.divergence import NO_DIGEST, digest
from logstore.engine.replicated.source_ranges import SourceRange
from logstore.engine.shared.chain_cursor import ChainCursor
from logstore.engine.write.admission import encode_runs
from logstore.format.stored.encoded_batch import place_all
from logstore.format.stored.segment import SegmentHeader, SegmentSummary, build_segment


@dataclass(frozen=True, slots=True)
class Attempt:
    ranges: list[SourceRange]
    header: SegmentHeader
    data: memoryview
    summary: SegmentSummary

    def flushed(self, seconds: float | None = None) -> FlushDone:
        """It is stored. `seconds`: how long that took, if we saw it."""
        header, charged = self.header, sum(held.charged for held in self.ranges)
        return FlushDone(header.base_offset, header.end_offset, len(self.data), charged, seconds, waited=None)


def build_attempt(cursor: ChainCursor, ranges: list[SourceRange], now_ms: int, codec_id: int) -> Attempt:
    """Encode the ranges for the cursor's place."""
    runs = [run for held in ranges for run in held.runs]
    header = replace(
        cursor.header(sum(len(run.records) for run in runs)),
        source_lower=ranges[0].lower,
        source_upper=ranges[-1].upper,
        digest=NO_DIGEST if ranges[0].exact else digest(runs),
    )
    encoded = encode_runs(runs, now_ms, codec_id)
    data, summary = build_segment(header, place_all(encoded, header.base_offset, header.epoch))
    return Attempt(ranges, header, data, summary)
