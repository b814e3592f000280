"""How long a test waits for something that must happen, on a machine that others keep busy too."""

from __future__ import annotations

PATIENCE_S = 100.0
"""Reaching it is a failure, never a pass: no test waits it out. Well below pytest's own limit for a test, so that what is
said at the end is what was waited for."""
