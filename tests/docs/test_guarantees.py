"""The page of promises is true: what is said to be kept has a test, and every code in a test's name means something."""

from __future__ import annotations

import pytest

from tests import guarantees


def test_the_page_of_guarantees_is_what_the_promises_and_the_tests_say() -> None:
    assert guarantees.PAGE.read_text() == guarantees.page(), "run python -m tests.guarantees"


def test_every_code_in_the_name_of_a_test_is_a_promise() -> None:
    known = guarantees.promises().codes()
    unknown = {code: tests for code, tests in guarantees.shown().items() if code not in known}
    assert unknown == {}, "docs/guarantees.toml has no such promise"


def test_every_promise_that_is_kept_has_a_test() -> None:
    known = guarantees.promises()
    assert known.codes() - known.not_yet - set(guarantees.shown()) == set(), "not_yet of docs/guarantees.toml"
    assert known.not_yet <= known.codes()


def test_every_promise_stands_in_the_group_of_its_letter_and_in_order() -> None:
    for group in guarantees.promises().groups:
        codes = list(group.promises)
        assert codes == [f"{group.letter}{number:02}" for number in range(1, len(codes) + 1)]
        assert not any("|" in promise for promise in group.promises.values()), "it is a row of a table"


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("test_L01_a_record", ["L01"]),
        ("test_S07_S09_both", ["S07", "S09"]),
        ("TestU01ToU03Model", ["U01", "U02", "U03"]),
        ("test_a_record", []),
        ("test_SIGTERM_ends_it", []),
        ("test_F10", ["F10"]),
    ],
)
def test_the_codes_of_a_name(name: str, codes: list[str]) -> None:
    assert guarantees.codes_of(name) == codes
