from __future__ import annotations

import pytest

from ease.streams.intake.names import numeric_order, readable_names


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (["001.Black_footed_Albatross", "200.Yellow"], ("Black footed Albatross", "Yellow")),
        (["n01443537", "n00000000"], ("goldfish", "n00000000")),
        (["n02012849", "n03126707", "n01443537"], ("crane (n02012849)", "crane (n03126707)", "goldfish")),
        (["001.Cat", "Cat"], ("Cat (001.Cat)", "Cat")),
        (["001.Cat", "002.Cat", "Cat (001.Cat)"], ("001.Cat", "002.Cat", "Cat (001.Cat)")),
        (["air_freshener", "12.", "7"], ("air_freshener", "12.", "7")),
    ],
)
def test_names_are_readable_and_all_different(folders: list[str], expected: tuple[str, ...]) -> None:
    assert readable_names(folders) == expected


def test_every_class_of_imagenet_a_and_r_has_a_word() -> None:
    from importlib.resources import files

    for part in ("a", "r"):
        wnids = (files("timm.data") / "_info" / f"imagenet_{part}_synsets.txt").read_text().split()
        named = readable_names(wnids)
        assert len(set(named)) == len(wnids) == 200
        assert not set(named) & set(wnids)


def test_numbers_are_ordered_as_numbers_only_if_all_are() -> None:
    assert numeric_order(["10", "2", "1"]) == ["1", "2", "10"]
    assert numeric_order(["10", "2", "x"]) == ["10", "2", "x"]
