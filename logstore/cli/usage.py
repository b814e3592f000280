"""The mistake of the one who typed the command line, and numbers that argparse should check."""

from __future__ import annotations

import argparse


class UsageError(Exception):
    """The command line asks for something that makes no sense. Exit code 2."""


def positive(text: str) -> int:
    """A whole number from 1, as an argument's `type`."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: it is a whole number, at least 1")
    return number
