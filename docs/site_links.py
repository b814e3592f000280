"""For the site only: links to files of the repository that are no pages (`../tests/…`) become plain code."""

from __future__ import annotations

import re
from typing import Any

_SOURCE = re.compile(r"\[([^\]]+)\]\(\.\./(?:tests|logstore|broker_shim)/[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _SOURCE.sub(r"`\1`", markdown)
