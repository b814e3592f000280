"""Reading a stored document: one way to say that it is damaged, or of a newer release."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from logstore.errors import CorruptData, UnsupportedStore
from logstore.format.stored.document import parse_document

T = TypeVar("T")


def read_document(
    key: str, data: bytes, what: str, formats: Collection[int], build: Callable[[dict[str, Any]], T]
) -> T:
    """What `build` makes of its content. Raises `UnsupportedStore` for a format that is not in `formats`, and `CorruptData`
    for all that cannot be read, or that `build` stumbles over."""
    try:
        content = parse_document(data)
        if content["format"] not in formats:
            raise UnsupportedStore(
                f"{key}: {what} of format {content['format']}, this release reads up to {max(formats)}: use a newer release"
            )
        return build(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(key, None, f"{what} cannot be read ({error})") from error
