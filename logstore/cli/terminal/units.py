"""Sizes, times and dates as people write them: 10GB, 7d, 1h30m, 2026-11-17T12:00, -1h. Each is an argument's `type`.

A plain number is what it was before there were units: bytes, seconds, milliseconds since 1970.
"""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime

_SIZES = {
    "": 1, "b": 1, "k": 1e3, "kb": 1e3, "m": 1e6, "mb": 1e6, "g": 1e9, "gb": 1e9, "t": 1e12, "tb": 1e12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_SECONDS = {
    "ms": 0.001, "s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0,
    "d": 86400.0, "day": 86400.0, "w": 7 * 86400.0, "week": 7 * 86400.0,
}  # fmt: skip
_NUMBER = r"\d+(?:\.\d+)?(?:e\d+)?"
_SIZE = re.compile(rf"({_NUMBER})\s*([a-z]*)", re.IGNORECASE)
_PART = re.compile(
    r"(\d+(?:\.\d+)?)\s*(?:(second|minute|hour|week|day|min|sec)s?|(ms|[smhdw]))", re.IGNORECASE
)


def size(text: str) -> int:
    """10GB, 16MiB, 1.5k, 1000: bytes. kB, MB, GB, TB are powers of 1,000; KiB, MiB, GiB, TiB of 1,024."""
    found = _SIZE.fullmatch(text.strip())
    factor = _SIZES.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise ValueError(f"{text!r} is no size: write 10GB, 16MiB, 500kB or a number of bytes")
    number = float(found[1]) * factor
    if not number.is_integer():  # nor is 1e999, which is infinite
        raise ValueError(f"{text!r} is no whole number of bytes")
    return int(number)


def duration(text: str) -> float:
    """7d, 7 days, 12h, 1h30m, 90s, 250ms, 3600: seconds."""
    try:
        return float(text)
    except ValueError:
        pass
    parts = list(_PART.finditer(text.strip()))
    if not parts or "".join(part[0] for part in parts).replace(" ", "") != text.replace(" ", ""):
        raise ValueError(f"{text!r} is no time: write 7d, 12h, 1h30m, 90s, 250ms or a number of seconds")
    return sum(float(part[1]) * _SECONDS[(part[2] or part[3]).lower()] for part in parts)


def period(text: str) -> float:
    """A time that passes between two rounds: more than 0, and not for ever."""
    found = duration(text)
    if not 0 < found < math.inf:
        raise ValueError(f"{text!r}: it is a time of more than 0, such as 1h, 90s or 250ms")
    return found


def size_or_none(text: str) -> float:
    """A size, or `none`: no limit."""
    return math.inf if text == "none" else size(text)


def duration_or_none(text: str) -> float:
    """A time, or `none`: no limit."""
    return math.inf if text == "none" else duration(text)


def moment_ms(text: str) -> int:
    """2026-11-17, 2026-11-17T12:00 (UTC if it names no zone), now, -1h (so long ago), or milliseconds since 1970; an @
    before it says the same."""
    text = text.removeprefix("@")
    now_ms = time.time_ns() // 1_000_000
    if text == "now":
        return now_ms
    try:
        if text.startswith("-"):
            return now_ms - round(duration(text[1:]) * 1000)
        return int(text)
    except (ValueError, OverflowError):
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no time: write 2026-11-17T12:00, 2026-11-17T12:00+01:00, now, -1h or milliseconds since 1970"
        ) from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def is_ago(text: str) -> bool:
    """Whether it is a time before now, `-1h`; `-10` is a number of records."""
    return text.startswith("-") and bool(text[1:]) and not text[1:].isdigit()


def rate(text: str) -> float:
    """50/s, 3000/min, 10k/h, 50: how many a second."""
    number, _, per = text.partition("/")
    seconds = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}.get(per.strip().lower())
    found = _SIZE.fullmatch(number.strip())
    factor = {"": 1, "k": 1e3, "m": 1e6}.get(found[2].lower()) if found else None
    if seconds is None or found is None or factor is None:
        raise ValueError(f"{text!r} is no rate: write 50/s, 3000/min or 10k/h")
    return float(found[1]) * factor / seconds


def shown_size(count: float) -> str:
    """1.5 GB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError("TB is the last")


def shown_duration(seconds: float | None) -> str:
    """7 d, 1 h 30 min, 90 s; `none` for no limit."""
    if seconds is None or seconds == math.inf:
        return "none"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length and len(parts) < 2:
            parts.append(f"{int(seconds // length)} {unit}")
            seconds %= length
    return " ".join(parts)


def shown_age(seconds: float | None) -> str:
    """42 s, 71 min, 3 h, 12 d: one unit, so that a table of it is narrow; `-` where there is nothing."""
    if seconds is None:
        return "-"
    for unit, length, up_to in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172800)):
        if seconds < up_to:
            return f"{max(1, round(seconds / length))} {unit}"
    return f"{round(seconds / 86400)} d"


def shown_moment(milliseconds: int) -> str:
    """2026-11-17T12:00:00.000+00:00, or `-` for a record without one."""
    if milliseconds < 0:
        return "-"
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # a record may say the year 10000, a datetime may not
        return f"{milliseconds} ms"


def shown_dollars(amount: float) -> str:
    """$1,234, $12.30, <$0.01."""
    if 0 < amount < 0.01:
        return "<$0.01"
    return f"${amount:,.0f}" if amount >= 100 else f"${amount:.2f}"
