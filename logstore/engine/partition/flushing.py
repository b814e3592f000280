"""Flush many partitions side by side. One that cannot be flushed is no reason to leave the others."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

from logstore.engine.partition.internal import Partition, Submitted
from logstore.errors import LogStoreError


def flush_all(logs: Iterable[Partition], held: AbstractContextManager[object], deadline: float) -> None:
    """All are asked before one is waited for; `held` keeps uploads from beginning until then. Raises the first reason why
    one could not be flushed, once the others are."""
    begun: list[tuple[Partition, Submitted]] = []
    errors: list[LogStoreError] = []
    with held:
        for log in logs:
            try:
                begun.append((log, log.begin_flush()))
            except LogStoreError as error:  # its writer has stopped, with what it held
                errors.append(error)
    for log, flush in begun:
        try:
            log.finish_flush(flush, deadline)
        except LogStoreError as error:
            errors.append(error)
    if errors:
        raise errors[0]
