"""What Spark jobs staged and nobody will publish: left by jobs that died, and by tasks that outlived theirs.

Nothing that is younger than the grace period goes. Of what is older, a commit can still need

* what the plan in the app's ledger names, however old it is: whoever runs next publishes it;
* everything of a version that the ledger has not come to, or of a job without a ledger, while its tasks are at work. That
  they are is seen from what they stage: its newest object is younger than the grace period.

So the grace period must be longer than a task of a job that writes may take. An app whose ledger cannot be read keeps all
it has staged.
"""

from __future__ import annotations

import json
import logging
from itertools import groupby
from typing import NamedTuple

from logstore.engine.garbage.garbage import Garbage
from logstore.layout.paths import SPARK_PREFIX, StagedName, spark_ledger
from logstore.objects.protocol import ObjectInfo, ObjectStore, get_if_there

logger = logging.getLogger(__name__)

_LEDGER_FORMAT = 1


class _Ledger(NamedTuple):
    """The version in an app's ledger, and the objects that its plan, if it is not carried out yet, names."""

    version: int
    needed: frozenset[str]


def unneeded(store: ObjectStore, now_ms: int, grace_s: float) -> list[Garbage]:
    """The staged objects that may go now."""
    cutoff_ms = now_ms - int(grace_s * 1000)
    staged = [
        (name, info) for info in store.list(SPARK_PREFIX) if (name := StagedName.parse(info.key)) is not None
    ]
    found: list[Garbage] = []
    for app, mine in groupby(staged, key=lambda one: one[0].app):
        objects = list(mine)
        if any(name.staged_at_ms <= cutoff_ms for name, _ in objects):
            found += _unneeded_of(store, app, objects, cutoff_ms)
    return found


def _unneeded_of(
    store: ObjectStore, app: str, objects: list[tuple[StagedName, ObjectInfo]], cutoff_ms: int
) -> list[Garbage]:
    try:
        ledger = _read(store, app)
    except (ValueError, KeyError, TypeError) as error:
        logger.error(
            "%s: it cannot be read (%r), so all that the app has staged stays", spark_ledger(app), error
        )
        return []
    newest: dict[int, int] = {}
    for name, _ in objects:
        newest[name.version] = max(name.staged_at_ms, newest.get(name.version, 0))
    return [
        Garbage(info.key, info.size)
        for name, info in objects
        if info.key not in ledger.needed
        and (name.staged_at_ms if name.version <= ledger.version else newest[name.version]) <= cutoff_ms
    ]


def _read(store: ObjectStore, app: str) -> _Ledger:
    stored = get_if_there(store, spark_ledger(app))
    if stored is None:
        return _Ledger(-1, frozenset())
    fields = json.loads(stored)
    if fields["format"] != _LEDGER_FORMAT:
        raise ValueError(f"format {fields['format']}, this release knows {_LEDGER_FORMAT}")
    plan = fields["plan"]
    parts = plan["parts"] if plan is not None else []
    return _Ledger(fields["version"], frozenset(part["key"] for part in parts))
