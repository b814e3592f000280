"""A key may name a slice of an object."""

from __future__ import annotations

import pytest

from logstore.errors import ObjectNotFound
from logstore.objects import MemoryStore
from logstore.objects.wrappers.slices import SlicedStore, is_slice, slice_key


def test_N01_a_slice_is_read_like_an_object() -> None:
    inner = MemoryStore()
    inner.put("lanes/a/1", b"0123456789")
    store = SlicedStore(inner)
    key = slice_key("lanes/a/1", 2, 5)
    assert is_slice(key)
    assert not is_slice("lanes/a/1")
    assert store.get(key) == b"23456"
    assert (store.get(key, 1, 3), store.get(key, -2), store.get(key, -99), store.get(key, 3, 99)) == (
        b"34",
        b"56",
        b"23456",
        b"56",
    )
    assert store.get(key, 5) == b""
    head = store.head(key)
    assert head is not None
    assert (head.key, head.size) == (key, 5)
    assert store.get("lanes/a/1", 0, 1) == b"0"
    assert store.head(slice_key("none", 0, 1)) is None
    with pytest.raises(ObjectNotFound):
        store.get(slice_key("none", 0, 1))
