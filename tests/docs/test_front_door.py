"""What a stranger meets first says the same everywhere: names, versions, menus, references."""

from __future__ import annotations

import re
import tomllib
from functools import reduce
from importlib import import_module
from typing import Any

import logstore
from tests.docs import cli_page
from tests.support.blocks import ROOT, name_of, pages

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_distribution_has_a_free_name_and_a_licence() -> None:
    assert PROJECT["name"] == "embedded-logstore"
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert PROJECT["dynamic"] == ["version"]  # logstore.__version__, and nowhere else


def test_nobody_is_told_to_install_somebody_elses_package() -> None:
    sources = [*pages(), *(ROOT / "logstore").rglob("*.py"), *(ROOT / "broker_shim").rglob("*.py")]
    for source in sources:
        told = re.findall(r"pip install\s+['\"]?logstore\b(?!.*gave me)", source.read_text())
        assert not told, f"{source.relative_to(ROOT)}: the distribution is called {PROJECT['name']}"


def test_the_changelog_has_this_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert logstore.__version__ in headings


def test_every_page_is_in_the_menu_of_the_site_once() -> None:
    menu = re.findall(r"(?:: |- )(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    there = [name_of(page).removeprefix("docs/") for page in pages() if name_of(page).startswith("docs/")]
    assert sorted(menu) == sorted(there)


def test_the_page_of_commands_is_what_the_parsers_say() -> None:
    assert cli_page.PAGE.read_text() == cli_page.page(), "run python -m tests.docs.cli_page"


def test_every_name_of_the_api_page_exists() -> None:
    shown = re.findall(
        r"^::: (\S+)\n(?:    options:\n(?:      .*\n)*)?",
        (ROOT / "docs" / "api.md").read_text(),
        re.MULTILINE,
    )
    text = (ROOT / "docs" / "api.md").read_text()
    assert len(shown) > 30
    for path in shown:
        found = _resolve(path)
        options = re.search(rf"^::: {re.escape(path)}\n((?:    .*\n)*)", text, re.MULTILINE)
        assert options is not None
        members = re.search(r"members: \[(.*)\]", options[1])
        for member in (members[1] if members else "").split(", "):
            assert not member or member in _names(found), f"docs/api.md: {path} has no {member}"


def test_every_dependency_is_explained() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    extras = PROJECT["optional-dependencies"]
    for requirement in PROJECT["dependencies"] + [each for extra in extras.values() for each in extra]:
        package = re.split(r"[\[<>=;~! ]", requirement)[0]
        assert f"`{package}`" in page, f"docs/dependencies.md does not say why {package}"


def _resolve(path: str) -> Any:
    """A name as griffe sees it: a module, or something in one."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            module = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[cut:], module)
    raise AssertionError(path)


def _names(found: Any) -> set[str]:
    """Attributes, fields and slots: a dataclass with slots and no default has no attribute for a field."""
    annotated = {
        name for each in getattr(found, "__mro__", ()) for name in getattr(each, "__annotations__", ())
    }
    return set(dir(found)) | annotated
