"""The manifest: a typed document that keeps its bytes, and of which nothing is believed."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ease.errors import EaseError
from ease.storage.manifest import Manifest, decode_manifest, encode_manifest, sealed

MODEL = Path(__file__).parents[1] / "app" / "format-1" / "model"
MANIFESTS = [MODEL / "manifest.json", *sorted((MODEL / "manifests").iterdir())]
RAW = MANIFESTS[0].read_bytes()


def values() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RAW)
    del found["checksum"]
    return found


def forged(changed: dict[str, Any]) -> Manifest:
    """What reading a manifest with these values and a right checksum gives."""
    return decode_manifest(sealed(changed), Path("manifest.json"))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_of_format_1_is_written_again_with_the_same_bytes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = path.read_bytes()
    manifest = decode_manifest(raw, path)

    class Then:
        @staticmethod
        def now(zone: object) -> Then:
            return Then()

        def isoformat(self, timespec: str) -> str:
            return manifest.created

    monkeypatch.setattr("ease.storage.manifest.datetime", Then)
    assert encode_manifest(manifest.generation, manifest, manifest.files) == raw


def test_what_the_app_keeps_has_attributes() -> None:
    manifest = decode_manifest(RAW, MANIFESTS[0])
    assert (manifest.generation, manifest.method, manifest.backbone.name) == (5, "ease", "ease-vit")
    assert (manifest.augmentation, manifest.seed, manifest.next_id) == ("gentle", 1993, 6)
    assert manifest.class_names[:3] == ["0", "1", "2"]
    assert manifest.history[0].classes == ["0", "1", "2"]
    assert manifest.kept_images == {"3": "thumbnails/0003", "4": "thumbnails/0004"}
    assert manifest.bytes == sum(path.stat().st_size for path in used(manifest))
    assert manifest.progress is None


def used(manifest: Manifest) -> list[Path]:
    return [MODEL / entry.path for entry in manifest.files.values()]


@pytest.mark.parametrize(
    "name", ["", " ", "a\nb", "\x1b[2J", "a\u202eb", "\u2028", "\udcff", "\x00", 7, None, ["a"]]
)
def test_class_names_are_checked_as_when_they_are_learned(name: object) -> None:
    changed = values()
    changed["classes"][0]["name"] = name
    with pytest.raises(EaseError, match=r"manifest\.json is damaged \(classes.*"):
        forged(changed)


@pytest.mark.parametrize("key", ["name", "id"])
def test_two_classes_of_one_name_or_id_are_refused(key: str) -> None:
    changed = values()
    changed["classes"][1][key] = changed["classes"][0][key]
    with pytest.raises(EaseError, match=f"two classes have the {key}"):
        forged(changed)


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside a JSON value."""
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    )
    return [path] * bool(path) + [spot for key, below in inner for spot in spots(below, (*path, key))]


WRONG: list[Any] = [None, "", "x", -1, 2**70, 1e308, True, [], [[]], {}, {"a": 1}, [None], "../x", "\x1b"]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(spots(values())), st.sampled_from(WRONG))
@example(("backbone", "input_size"), 2**70)
@example(("kept_images", "3"), "../../secret")
@example(("history",), None)
@example(("passes_per_image",), "many")
def test_a_forged_manifest_is_a_manifest_or_one_line(spot: tuple[Any, ...], wrong: Any) -> None:
    changed = copy.deepcopy(values())
    place: Any = changed
    for key in spot[:-1]:
        place = place[key]
    place[spot[-1]] = wrong
    try:
        manifest: Manifest | str = forged(changed)
    except EaseError as error:
        manifest = str(error)
    if isinstance(manifest, str):
        assert len(manifest.splitlines()) == 1
        assert "manifest.json" in manifest
        return
    assert manifest.generation >= 1
    assert all(isinstance(name, str) for name in manifest.class_names)


def test_what_only_a_later_version_knows_is_left_out() -> None:
    manifest = forged({**values(), "novelty": 3})
    assert "novelty" not in manifest.as_json()
    assert manifest.method == "ease"
