"""The document that names the owner of a chain: one way to write it, and every other is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.owner import NO_TOKEN, UNKNOWN_BOOT, Owner
from tests.golden.write_formats import OWNER


@pytest.mark.parametrize(
    "owner",
    [
        OWNER,
        Owner(UNKNOWN_BOOT, 0, 0, 0, 0, NO_TOKEN, "", ""),
        replace(OWNER, pid_namespace=2**64 - 1, started=2**64 - 1, host="häuschen", name="x" * 255),
    ],
)
def test_W17_an_owner_is_read_as_it_was_written(owner: Owner) -> None:
    assert Owner.parse(owner.pack()) == owner


def test_W17_a_name_that_is_too_long_is_cut_between_two_characters() -> None:
    host = Owner.parse(replace(OWNER, host="ä" * 200).pack()).host
    assert host == "ä" * 127


def test_W17_every_other_way_to_write_it_is_refused() -> None:
    data = OWNER.pack()
    for end in range(len(data)):
        with pytest.raises(FormatError):
            Owner.parse(data[:end])
    with pytest.raises(FormatError, match="behind the owner are 1 bytes"):
        Owner.parse(data + b"x")
    with pytest.raises(FormatError, match="UTF-8"):
        Owner.parse(data.replace(b"web-1", b"web-\xff"))
    with pytest.raises(UnsupportedVersion):
        Owner.parse(b"\x02" + data[1:])


def test_W17_an_error_names_it_by_what_one_can_look_for() -> None:
    assert str(OWNER) == "process 4711 (shop) on web-1"
    assert str(replace(OWNER, name="", host="")) == "process 4711"
