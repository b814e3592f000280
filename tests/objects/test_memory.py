"""What is special about memory: names, pages under its lock, no copies."""

from __future__ import annotations

from logstore.objects import MemoryStore, open_url


def test_two_opens_of_a_name_share_the_data() -> None:
    open_url("memory://shared-by-name").put("k", b"x")
    assert open_url("memory://shared-by-name").get("k") == b"x"
    assert MemoryStore.named("shared-by-name").get("k") == b"x"
    assert open_url("memory://another-name").head("k") is None
    assert MemoryStore().head("k") is None


def test_listing_goes_on_over_pages_while_others_write() -> None:
    store = MemoryStore()
    wanted = [f"p/{number:05}" for number in range(0, 6000, 2)]
    for key in reversed(wanted):
        store.put(key, b"", if_absent=True)
    store.put("a", b"")
    store.put("z", b"")
    assert [info.key for info in store.list("p/")] == wanted
    assert [info.key for info in store.list("p/", wanted[999])] == wanted[1000:]
    assert [info.key for info in store.list("p/", wanted[1000])] == wanted[1001:]

    seen = []
    for info in store.list("p/"):
        seen.append(info.key)
        if info.key == "p/03000":
            store.delete("p/05998")
            store.put("p/05001", b"")
            store.put("p/00001", b"")
    assert seen == sorted([*wanted[:-1], "p/05001"]), (
        "later pages see later writes; nothing twice, nothing skipped"
    )


def test_bytes_are_kept_and_handed_out_without_a_copy() -> None:
    store = MemoryStore()
    body = b"x" * 1000
    store.put("k", body)
    assert store.get("k") is body
