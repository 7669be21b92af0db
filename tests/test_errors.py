"""Messages for people: one line of bounded length, in which every character can be seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ease.errors import LONGEST_MESSAGE, EaseError, unknown


@given(st.text(st.characters(codec=None), max_size=3000))
def test_whatever_it_repeats_a_message_is_one_short_line_without_hidden_characters(text: str) -> None:
    shown = str(EaseError(f"unknown class '{text}': check it"))
    assert len(shown) <= LONGEST_MESSAGE + 5
    assert len(shown.splitlines()) == 1
    shown.encode()
    assert not set(shown) & set("\u202e\u200f\u2066\x1b\x07\x00")


def test_the_beginning_and_the_end_of_a_long_message_are_kept() -> None:
    shown = str(EaseError(f"cannot use {'x' * 5000}: give a shorter one"))
    assert shown.startswith("cannot use xxx")
    assert shown.endswith("xxx: give a shorter one")


def test_of_many_known_names_some_are_listed() -> None:
    shown = str(unknown("backbone", "`id`", [f"backbone-{i:04d}" for i in range(1000)]))
    assert "known: backbone-0000, backbone-0001" in shown
    assert shown.endswith("more")
    assert len(shown) < 500
