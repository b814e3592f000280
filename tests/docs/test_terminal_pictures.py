"""The pictures of docs/cli.md show what the commands print today, in a real terminal."""

from __future__ import annotations

import shutil

import pytest

from tests.docs.terminal_pictures import lines_of, picture, session, shape

AGAIN = "`python -m tests.docs.terminal_pictures` takes the pictures again"


def test_O03_the_pictures_of_a_terminal_show_what_is_printed() -> None:
    if shutil.which("tmux") is None:
        pytest.skip("THE PICTURES OF THE TERMINAL WERE NOT COMPARED: there is no tmux")
    for path, shown in session().items():
        fresh = [shape(line) for line in lines_of(picture(shown))]
        kept = [shape(line) for line in lines_of(path.read_text())]
        assert fresh == kept, f"{path.name}: {AGAIN}"
        assert "\x1b[" in shown, "in colours"
        assert "://" not in path.read_text().replace("http://www.w3.org", ""), "a picture asks nobody"
