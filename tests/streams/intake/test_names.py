from __future__ import annotations

import pytest

from ease.errors import EaseError, printable, showable
from ease.streams.intake.names import class_name, numeric_order, readable_names


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


INVISIBLE = [
    *(0xAD, 0x34F, 0x378, 0x115F, 0x1160, 0x17B4, 0x180E, 0x200C, 0x200D, 0x2060, 0x2062, 0x2800, 0x3164),
    *(0xE000, 0xFE0F, 0xFFA0, 0xFFF9, 0xFFFE, 0x1D173, 0xE0041, 0xE0100),
]


@pytest.mark.parametrize("char", [*map(chr, INVISIBLE)], ids=ascii)
def test_a_new_name_has_nothing_that_cannot_be_seen_and_is_printed_with_escapes(char: str) -> None:
    for name in (char, f"red{char}", f"{char}red", f"re{char}d", f"red {char}"):
        with pytest.raises(EaseError, match="cannot be shown"):
            class_name(name)
        assert char not in printable(name)
        assert char not in showable(name)


@pytest.mark.parametrize(
    "name",
    [
        "caf\u00e9",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian, with a joiner that keeps apart
        "\u0915\u094d\u200d\u0937",  # Hindi
        "\u2764\ufe0f\u200d\U0001f525",  # a heart on fire
        "\U0001f469\U0001f3fd\u200d\U0001f680",  # an astronaut with a skin colour
        "1\ufe0f\u20e3",
        "\U0001f1eb\U0001f1f7 flag",
        "??",
    ],
)
def test_names_of_all_scripts_and_emojis_are_names(name: str) -> None:
    assert class_name(name) == printable(name) == name


@pytest.mark.parametrize("name", ["", " ", "\u3000", "\u0301", "\u00a0"])
def test_a_name_is_never_blank(name: str) -> None:
    with pytest.raises(EaseError, match=r"is empty|cannot be shown"):
        class_name(name)
