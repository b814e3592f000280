"""What the engine sees of an object store: one wrapper counts, one reads slices, one puts foreign errors into our words, one
rides out short failures of everything but conditional puts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from logstore.objects.protocol import ObjectStore
from logstore.objects.wrappers.foreign import ForeignErrors
from logstore.objects.wrappers.metered import MeteredStore
from logstore.objects.wrappers.retrying import RetryingStore, RetryPolicy
from logstore.objects.wrappers.slices import SlicedStore

READ_RETRIES = RetryPolicy(attempts=4, base_s=0.05, cap_s=0.5)


class Layers(NamedTuple):
    """From the inside out. `bare`: without retries, for who repeats several requests as a whole."""

    metered: MeteredStore
    bare: ForeignErrors
    retrying: RetryingStore

    @classmethod
    def round(cls, objects: ObjectStore, clock: Callable[[], float] = time.perf_counter) -> Layers:
        """`clock`: seconds, for how long a request takes and has waited."""
        metered = MeteredStore(objects, clock=clock)
        bare = ForeignErrors(SlicedStore(metered))
        return cls(metered, bare, RetryingStore(bare, READ_RETRIES))
