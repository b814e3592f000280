"""The mistake of the one who typed the command line, a command that was interrupted, and numbers that are checked."""

from __future__ import annotations


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
