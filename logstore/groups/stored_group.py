"""A group's objects in the store: the document, as last seen, and one slot for each member.

Replacing is always a swap of the version that was read; `settled` tells a lost answer from a lost race. One thread at
a time.
"""

from __future__ import annotations

from collections.abc import Mapping

from logstore.groups.documents import Document, Slot
from logstore.layout.groups import group_document, group_prefix, group_slot, slot_of
from logstore.objects.protocol import ObjectInfo, ObjectStore, get_if_there
from logstore.objects.settled import put_settled


class StoredGroup:
    def __init__(self, objects: ObjectStore, group: str) -> None:
        self._objects = objects
        self._group = group
        self.key = group_document(group)
        self.document = Document()
        self.etag: str | None = None

    def read(self) -> tuple[Document, str | None]:
        """The etag first: if the object changes in between, a swap of that version fails."""
        info = self._objects.head(self.key)
        if info is None or info.etag != self.etag:
            data = None if info is None else get_if_there(self._objects, self.key)
            if info is None or data is None:
                self.document, self.etag = Document(), None
            else:
                self.document, self.etag = Document.parse(self.key, data), info.etag
        return self.document, self.etag

    def replace(self, new: Document, etag: str | None) -> bool:
        """False: it is another version by now. `Indeterminate` if the store does not say."""
        info = put_settled(self._objects, self.key, new.pack(), etag)
        if info is not None:
            self.document, self.etag = new, info.etag
        return info is not None

    def listed(self) -> dict[str, str]:
        """The etags of all objects of the group, by key: one request."""
        return {info.key: info.etag for info in self._objects.list(group_prefix(self._group))}

    def slot_etag(self, slot: int) -> str | None:
        info = self._objects.head(group_slot(self._group, slot))
        return None if info is None else info.etag

    def read_slot(self, slot: int) -> tuple[Slot, str] | None:
        etag, key = self.slot_etag(slot), group_slot(self._group, slot)
        data = None if etag is None else get_if_there(self._objects, key)
        return None if etag is None or data is None else (Slot.parse(key, data), etag)

    def put_slot(self, slot: int, new: Slot, etag: str | None) -> ObjectInfo | None:
        """None: it is another version by now. `Indeterminate` if the store does not say."""
        return put_settled(self._objects, group_slot(self._group, slot), new.pack(), etag)


def slots_in(listed: Mapping[str, str]) -> dict[int, str]:
    """Those of the listed objects that are slots."""
    return {slot: etag for key, etag in listed.items() if (slot := slot_of(key)) is not None}
