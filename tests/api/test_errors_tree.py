"""The drawing in `logstore.errors` is the tree of classes, and every error survives a trip to another process."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

import logstore
from logstore import errors

CLASSES = {
    name: found
    for name, found in vars(errors).items()
    if inspect.isclass(found) and issubclass(found, errors.LogStoreError)
}
_LINE = re.compile(r"^ {4}(?P<rails>[│├└─ ]*)(?P<name>[A-Z]\w+)", re.MULTILINE)


def drawn() -> dict[str, str]:
    """Each drawn class and the one above it."""
    assert errors.__doc__ is not None
    above: list[str] = ["Exception"]
    found: dict[str, str] = {}
    for line in _LINE.finditer(errors.__doc__):
        depth = len(line["rails"]) // 4
        del above[depth + 1 :]
        assert line["name"] not in found, f"{line['name']} is drawn twice"
        found[line["name"]] = above[depth]
        above.append(line["name"])
    return found


def test_the_drawing_is_the_tree() -> None:
    classes = {name: found.__bases__[0].__name__ for name, found in CLASSES.items()}
    assert drawn() == classes
    assert len(classes) > 20, "the drawing was not found"


def test_every_error_has_one_base_and_says_whether_to_retry() -> None:
    for name, found in CLASSES.items():
        assert len(found.__bases__) == 1, name
        assert isinstance(found.retriable, bool), name
        assert found.__doc__, name


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_error_can_be_pickled_with_all_it_says(name: str) -> None:
    """Spark tasks and process pools do that, and an error that cannot be unpickled hides what happened."""
    made: dict[str, errors.LogStoreError] = {
        "CorruptData": errors.CorruptData("topics/t/0/1.seg", 17, "a flipped bit"),
        "OffsetOutOfRange": errors.OffsetOutOfRange(3, 9, 12, "t/0"),
    }
    error = made.get(name) or CLASSES[name]("what happened")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_the_public_errors_are_those_of_the_package() -> None:
    """`InvalidKey` is what an object store says of a key; the engine makes all keys, so no caller of the log sees it."""
    exported = {name for name in logstore.__all__ if name in CLASSES}
    assert exported == set(CLASSES) - {"InvalidKey"}
    assert all(getattr(logstore, name) is CLASSES[name] for name in exported)


def test_the_marks_are_in_the_error() -> None:
    error = errors.OffsetOutOfRange(3, 9, 12, "orders/4")
    assert (error.low, error.high, error.offset) == (3, 9, 12)
    assert all(part in str(error) for part in ("orders/4", "3", "9", "12"))
    damage = errors.CorruptData("some/key", 17, "a flipped bit")
    assert all(part in str(damage) for part in ("some/key", "17", "a flipped bit"))


def test_what_may_be_repeated_as_it_is() -> None:
    """`retriable` promises that repeating the same call cannot make a duplicate."""
    retriable = {name for name, found in CLASSES.items() if found.retriable}
    assert retriable == {"BufferFull", "Determinate", "PartitionInUse", "StoreUnavailable"}
