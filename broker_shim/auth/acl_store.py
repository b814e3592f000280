"""Where access rules live: one object in the store, changed by compare-and-set, read again when it changes.

It holds the rules and a nonce, so that no two versions have the same bytes: whether ours is stored can be told, and a put
that is carried out late never meets the version that it was made for again. (Before, the object was the list of rules
alone.)
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable

from broker_shim.auth.acls import Acl
from logstore.errors import CorruptData, ObjectNotFound, PreconditionFailed
from logstore.layout.broker import ACLS_KEY
from logstore.objects import ObjectStore
from logstore.objects.settled import put_settled

ATTEMPTS = 10


class AclStore:
    """Does I/O: used from worker threads."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._last: tuple[frozenset[Acl], str | None] = (frozenset(), None)

    def load(self) -> frozenset[Acl]:
        return self._read()[0]

    def change(self, edit: Callable[[frozenset[Acl]], frozenset[Acl]]) -> frozenset[Acl]:
        """Apply `edit` to the rules as they stand now; again if another broker was faster."""
        for _ in range(ATTEMPTS):
            rules, etag = self._read()
            changed = edit(rules)
            if changed == rules:
                return rules
            document = {"rules": sorted(changed), "nonce": secrets.token_hex(8)}
            if put_settled(self._objects, ACLS_KEY, json.dumps(document).encode(), etag):
                return changed
        raise PreconditionFailed(f"{ACLS_KEY} changed {ATTEMPTS} times while it was being edited; try again")

    def _read(self) -> tuple[frozenset[Acl], str | None]:
        """Head before get: if the object changes in between, the older etag makes our put fail, never win."""
        info = self._objects.head(ACLS_KEY)
        if info is None:
            return frozenset(), None
        if info.etag != self._last[1]:
            try:
                content = json.loads(self._objects.get(ACLS_KEY))
                rules = content["rules"] if isinstance(content, dict) else content
                self._last = frozenset(Acl(*rule) for rule in rules), info.etag
            except ObjectNotFound:
                return frozenset(), None
            except (ValueError, TypeError, KeyError) as error:
                raise CorruptData(ACLS_KEY, None, f"these are no access rules: {error}") from error
        return self._last
