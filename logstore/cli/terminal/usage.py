"""The mistake of the one who typed the command line, a command that was interrupted, how both are said, how often a warning
is, and numbers that are checked."""

from __future__ import annotations

import logging
import sys
from collections import Counter

_said: Counter[tuple[str, str]] = Counter()


class UsageError(Exception):
    """The command line asks for something that makes no sense. Exit code 2."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, and what is to be said about it: where it stopped, and how to go on from there. Exit code 130."""


def positive(text: str) -> int:
    """A whole number from 1, as an argument's `type`."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"{text!r}: it is a whole number, at least 1")
    return number


def complain(text: str) -> None:
    """On stderr. On a terminal it is broken between words, not in them."""
    if sys.stderr is not None and sys.stderr.isatty():
        import shutil
        import textwrap

        columns = shutil.get_terminal_size().columns
        text = textwrap.fill(text, columns, break_long_words=False, break_on_hyphens=False)
    print(text, file=sys.stderr)


def seldom(record: logging.LogRecord) -> bool:
    """Whether a warning is shown: the first, the second, the fourth of its kind and so on. A store that is full or away is
    tried again several times a second."""
    kind = record.name, str(record.msg)
    _said[kind] += 1
    return _said[kind].bit_count() == 1
