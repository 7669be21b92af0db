"""Predictions for many images: one row for each input, whatever happens on the way."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ease import Classifier, Prediction
from ease.app.bulk import (
    Input,
    listed_inputs,
    output,
    place_inputs,
    predict_stream,
    predict_to_file,
    predicting,
)
from ease.errors import EaseError
from ease.streams.intake.sources.video import video_frames
from tests.app.conftest import LIGHT, Digits, Outcome, refused, write_folder
from tests.forked import Forked, ease_command, in_little_memory
from tests.streams.intake.test_shapes import arrow_table, picture, save_to_disk, write_coco, write_shard

Ease = Callable[..., Outcome]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, digits: Digits) -> Path:
    path = tmp_path_factory.mktemp("bulk") / "model"
    Classifier.create(path, input_size=16, settings=LIGHT).learn(digits("0", "1", "2", count=10))
    return path


@pytest.fixture
def photos(tmp_path: Path, digits: Digits) -> Path:
    """20 photos in folders, and one that is none."""
    folder = write_folder(tmp_path / "photos", digits("0", "1", count=10, skip=20))
    (folder / "0" / "bad.jpg").write_bytes(b"hello")
    return folder


def names(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.rglob("*.*"))]


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows: list[dict[str, Any]] = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    return rows


FORMATS = [".csv", ".jsonl", ".parquet"]


@pytest.mark.parametrize("ending", FORMATS)
def test_a_folder_gives_one_row_for_each_file_and_the_exit_code_says_that_one_is_bad(
    ease: Ease, trained: Path, photos: Path, tmp_path: Path, ending: str
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    out = tmp_path / f"out{ending}"
    done = ease("predict", photos, "--model", trained, "--out", out, "--top", 2)
    assert done.code == 1
    assert "wrote 21 rows" in done.out
    assert "1 of 21 images could not be used" in done.err
    assert "bad.jpg" in done.err
    rows = read(out)
    assert [row["file"] for row in rows] == names(photos)
    assert [row["file"] for row in rows if row["error"]] == [str(photos / "0" / "bad.jpg")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["photos", out.name])
    good = rows[0]
    assert float(good["threshold"]) == 0.5
    assert {"unknown", "is_unknown", "calibrated", "generation"} <= set(good)
    assert "exists already" in refused(ease("predict", photos, "--model", trained, "--out", out))


def test_all_formats_say_what_python_says(ease: Ease, trained: Path, photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (photos / "0" / "bad.jpg").unlink()
    classifier = Classifier.open(trained)
    expected = classifier.predict([Path(name) for name in names(photos)], top_k=2)
    for ending in FORMATS:
        assert (
            ease("predict", photos, "--model", trained, "--out", tmp_path / f"o{ending}", "--top", 2).code
            == 0
        )
        for row, one in zip(read(tmp_path / f"o{ending}"), expected, strict=True):
            if ending == ".csv":
                assert (row["name"], row["name_2"]) == one.names
                assert float(row["confidence_2"]) == pytest.approx(one.confidences[1], abs=1e-4)
                assert row["is_unknown"] == str(one.is_unknown).lower()
                continue
            assert row.pop("generation") == classifier.generation
            found = Prediction.model_validate(row)
            assert found.names == one.names
            assert found.confidences == pytest.approx(one.confidences, abs=1e-5)
            assert found.unknown == pytest.approx(one.unknown, abs=1e-5)
            assert row["is_unknown"] == one.is_unknown
            assert set(row) == set(one.model_dump())


def test_the_document_on_the_terminal_is_the_one_of_the_schema(
    ease: Ease, trained: Path, photos: Path
) -> None:
    done = ease("predict", photos, "--model", trained, "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert json.dumps(found, indent=1) + "\n" == done.out  # printed in pieces, as if at once
    assert [one["file"] for one in found["predictions"]] == names(photos)
    (failed,) = [one for one in found["predictions"] if one["error"]]
    assert failed["classes"] == []
    assert failed["unknown"] is None
    text = ease("predict", photos, "--model", trained)
    assert f"{photos}/0/bad.jpg: error: " in text.out
    rows = list(csv.DictReader(io.StringIO(ease("predict", photos, "--model", trained, "--csv").out)))
    assert len(rows) == 20 * 3 + 1
    assert rows[0]["threshold"] == "0.5000"


def test_a_single_photo_that_is_bad_is_refused_unless_skipping_was_asked_for(
    ease: Ease, trained: Path, photos: Path, tmp_path: Path
) -> None:
    bad = photos / "0" / "bad.jpg"
    assert "bad.jpg" in refused(ease("predict", bad, "--model", trained))
    assert ease("predict", bad, "--model", trained, "--unreadable", "skip").code == 1
    assert "bad.jpg" in refused(ease("predict", photos, "--model", trained, "--unreadable", "refuse"))
    stopped = ease(
        "predict", photos, "--model", trained, "--unreadable", "refuse", "--out", tmp_path / "a.csv"
    )
    assert "bad.jpg" in refused(stopped)
    assert not (tmp_path / "a.csv").exists()


def test_an_error_row_has_no_name() -> None:
    failed = Prediction.failed("a.jpg", "it is broken", calibrated=True)
    assert (failed.classes, failed.is_unknown, failed.names) == ((), False, ())
    with pytest.raises(EaseError, match="it is broken"):
        _ = failed.name


# -- inputs


def piped(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    class Piped:
        buffer = io.BytesIO(content)

    monkeypatch.setattr("sys.stdin", Piped())


@pytest.mark.parametrize("nul", [False, True])
def test_a_list_of_paths_is_read_from_the_pipe(
    ease: Ease, trained: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nul: bool
) -> None:
    given = [*names(photos), str(photos / "none.png"), names(photos)[0]]
    end = "\0" if nul else "\r\n"
    piped(monkeypatch, (end.join(given) + end).encode())
    done = ease("predict", "-", *(["-0"] if nul else []), "--model", trained, "--out", tmp_path / "o.jsonl")
    assert done.code == 1
    rows = read(tmp_path / "o.jsonl")
    assert [row["file"] for row in rows] == given
    assert "No such file" in rows[-2]["error"]


def test_a_list_may_begin_with_a_byte_order_mark_and_is_not_utf_16() -> None:
    (row,) = listed_inputs(io.BytesIO("a.png\n".encode("utf-8-sig")))
    assert row.name == "a.png"
    with pytest.raises(EaseError, match="the list is text in UTF-16: save it as UTF-8"):
        list(listed_inputs(io.BytesIO("a.png\n".encode("utf-16"))))


def test_an_empty_list_is_said_to_be_empty(
    ease: Ease, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, b"")
    done = ease("predict", "-", "--model", trained)
    assert (done.code, done.out) == (0, "")
    assert "note: the list is empty" in done.err


def test_a_table_of_paths_is_read_with_its_own_names(
    ease: Ease, trained: Path, photos: Path, tmp_path: Path
) -> None:
    table = tmp_path / "photos.csv"
    paths = [
        "0/000.png",
        "1/001.png",
        "../secret.png",
        "http://host/a.png",
        str(photos / "0" / "001.png"),
        "",
    ]
    table.write_text("id,image\n" + "".join(f"{i},{path}\n" for i, path in enumerate(paths)))
    out = tmp_path / "o.jsonl"
    assert ease("predict", "--from", table, "--root", photos, "--model", trained, "--out", out).code == 1
    rows = read(out)
    assert [row["file"] for row in rows] == paths
    assert [bool(row["error"]) for row in rows] == [False, False, True, True, False, True]
    assert "photos.csv', row 4" in rows[2]["error"]


SHAPES = ["coco", "shards", "shards as a place", "saved", "saved as a place", "parquet with images"]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shapes_that_are_learned_from_are_predicted_too(
    ease: Ease, trained: Path, tmp_path: Path, shape: str
) -> None:
    """Each says what its images say as files; labels, where there are any, make no difference."""
    seeds = list(range(7))
    for seed in seeds:
        (tmp_path / f"{seed}.png").write_bytes(picture(seed))
    files = [str(tmp_path / f"{seed}.png") for seed in seeds]
    source: str | Path
    if shape == "coco":
        source = write_coco(tmp_path / "a.json", [(Path(file).name, "x") for file in files])
        wanted = [Path(file).name for file in files]
    elif shape.startswith("shards"):
        write_shard(tmp_path / "s-00.tar", {f"{seed}.png": picture(seed) for seed in seeds[:4]})
        write_shard(tmp_path / "s-01.tar", {f"{seed}.png": picture(seed) for seed in seeds[4:]})
        source = f"{tmp_path}/s-{{00..01}}.tar"
        wanted = [f"s-{int(seed > 3):02d}.tar/{seed}.png" for seed in seeds]
    elif shape.startswith("saved"):
        source = save_to_disk(tmp_path / "saved")
        wanted = [f"data-00000-of-00001.arrow[{at}]" for at in range(len(arrow_table()))]
    else:
        source = tmp_path / "a.parquet"
        pytest.importorskip("pyarrow.parquet").write_table(arrow_table(), source, row_group_size=3)
        wanted = [f"a.parquet[{at}]" for at in range(len(arrow_table()))]
    if isinstance(source, Path) and shape != "coco":
        files = []
        for at, image in enumerate(arrow_table()["image"].to_pylist()):
            files.append(str(tmp_path / f"arrow-{at}.png"))
            Path(files[-1]).write_bytes(image["bytes"])
    place = [source] if shape.endswith("place") else ["--from", source]
    done = ease("predict", *place, "--model", trained, "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["predictions"]
    assert [row["file"] for row in rows] == wanted
    plain = json.loads(ease("predict", *files, "--model", trained, "--json").out)["predictions"]
    assert [{**row, "file": None} for row in rows] == [{**row, "file": None} for row in plain]


def test_what_is_wrong_with_a_dataset_is_a_row_or_said_at_once(
    ease: Ease, trained: Path, tmp_path: Path
) -> None:
    write_shard(tmp_path / "s-0.tar", {"a.png": picture(1), "b.cls": b"cat", "c.png": b"none"})
    (tmp_path / "s-1.tar").write_bytes(b"no tar at all" * 100)
    write_shard(tmp_path / "s-2.tar", {"d.png": picture(2)})
    done = ease("predict", tmp_path / "s-*.tar", "--model", trained, "--json")
    assert done.code == 1
    rows = json.loads(done.out)["predictions"]
    assert [(row["file"], bool(row["error"])) for row in rows] == [
        ("s-0.tar/a.png", False),
        ("s-0.tar/b", True),
        ("s-0.tar/c.png", True),
        ("s-1.tar", True),
        ("s-2.tar/d.png", False),
    ]
    coco = write_coco(tmp_path / "a.json", [("../secret.png", "x"), ("none.png", "x")])
    rows = json.loads(ease("predict", "--from", coco, "--model", trained, "--json").out)["predictions"]
    assert ["images[0] of a.json" in rows[0]["error"], bool(rows[1]["error"])] == [True, True]
    (tmp_path / "empty.json").write_text('{"images": []}')
    saved = save_to_disk(tmp_path / "saved")
    for words, problem in (
        (["--from", tmp_path / "empty.json"], "no image"),
        (["--from", tmp_path / "none.json"], "does not exist"),
        (["--from", tmp_path / "none-{0..3}.tar"], "does not exist"),
        (["--from", tmp_path / "s-0.tar", "--column", "x"], "--column belongs to a table"),
        (["--from", saved, "--root", tmp_path], "--root belongs to a table"),
        (["--from", saved, "--column", "picture"], "no column of images"),
    ):
        line = refused(ease("predict", *words, "--model", trained, "--out", tmp_path / "o.csv"))
        assert problem in line
        assert not (tmp_path / "o.csv.parts").exists()


def test_patterns_and_places_are_recognised(ease: Ease, trained: Path, photos: Path) -> None:
    done = ease("predict", photos / "*" / "00[12].png", photos / "1" / "000.png", "--model", trained)
    assert done.code == 0
    assert [line.split(": ")[0] for line in done.out.splitlines()] == [
        str(photos / part / name)
        for part, name in [
            ("0", "001.png"),
            ("0", "002.png"),
            ("1", "001.png"),
            ("1", "002.png"),
            ("1", "000.png"),
        ]
    ]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "say what to look at"),
        (["{photos}", "--from", "{photos}/t.csv"], "say what to look at"),
        (["-", "{photos}"], "'-' stands for all"),
        (["{photos}/none-*.png"], "nothing matches"),
        (["{photos}/none.png"], "does not exist"),
        (["{photos}", "--null"], "--null belongs to a list"),
        (["{photos}", "--root", "{photos}"], "--root belongs to a table"),
        (["{photos}", "--allow-urls"], "--allow-urls belongs"),
        (["{photos}", "--json", "--out", "{photos}/a.csv"], "exclude each other"),
        (["{photos}", "--out", "{photos}/a.xlsx"], "unknown ending of --out '.xlsx'"),
        (
            ["{photos}", "--out", "{photos}/0/000.png/a.csv"],
            "a file of that name is in the way|part of that path",
        ),
        (["--from", "{photos}/none.csv"], "is not there"),
        (["{photos}/clip.mp4"], "is a video: .*--every 30"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    ease: Ease, trained: Path, photos: Path, words: list[str], problem: str
) -> None:
    (photos / "clip.mp4").write_bytes(b"")
    before = names(photos)
    line = refused(ease("predict", *(word.format(photos=photos) for word in words), "--model", trained))
    assert re.search(problem, line), line
    assert names(photos) == before


def test_a_link_to_nothing_does_not_stop_a_folder(ease: Ease, trained: Path, photos: Path) -> None:
    (photos / "0" / "005.png").unlink()
    (photos / "0" / "005.png").symlink_to(photos / "none.png")
    found = json.loads(ease("predict", photos, "--model", trained, "--json").out)["predictions"]
    assert [one["file"] for one in found] == names(photos)
    assert "does not exist" in found[5]["error"]


def test_names_that_are_no_text_and_formulas_do_no_harm(
    ease: Ease, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    piped_names = ["=cmd().png", "-1+1.png", "@x.png", os.fsdecode(b"a\xff.png")]
    for ending in FORMATS:
        piped(monkeypatch, b"\n".join(os.fsencode(name) for name in piped_names))
        assert ease("predict", "-", "--model", trained, "--out", tmp_path / f"o{ending}").code == 1
    for row in read(tmp_path / "o.csv")[:3]:
        assert row["file"][0] == "'"
    assert [row["file"] for row in read(tmp_path / "o.parquet")] == [*piped_names[:3], "a\\udcff.png"]
    table = tmp_path / "halves.jsonl"
    table.write_text('{"path": "\\ud800.png"}\n')  # half a pair, as no file system has it
    assert ease("predict", "--from", table, "--model", trained, "--out", tmp_path / "half.csv").code == 1
    assert [row["file"] for row in read(tmp_path / "half.csv")] == ["\\ud800.png"]
    piped(monkeypatch, b"=cmd().png")
    shown = list(csv.DictReader(io.StringIO(ease("predict", "-", "--model", trained, "--csv").out)))
    assert shown[0]["file"] == "'=cmd().png"


def write_clip(path: Path) -> None:
    """A video of ten frames."""
    av = pytest.importorskip("av")
    with open(path, "wb") as file, av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height = 64, 48
        for number in range(10):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 * number, np.uint8), format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def test_frames_of_a_video_are_rows(ease: Ease, trained: Path, photos: Path, tmp_path: Path) -> None:
    write_clip(photos / "clip.mp4")
    (photos / "torn.mp4").write_bytes(b"nothing")
    out = tmp_path / "o.jsonl"
    assert ease("predict", photos / "clip.mp4", "--every", 4, "--model", trained, "--out", out).code == 0
    assert [row["file"] for row in read(out)] == [f"{photos}/clip.mp4#{n}" for n in (0, 4, 8)]
    done = ease("predict", photos, "--every", 5, "--model", trained, "--json")
    rows = json.loads(done.out)["predictions"]
    assert len(rows) == 21 + 2 + 1
    assert "video" in rows[-1]["error"]


@pytest.mark.parametrize(
    "text", ["ffconcat version 1.0\nfile other.mp4\n", "ffconcat version 1.0\nfile a.mp4\n"]
)
def test_a_video_opens_no_other_file(tmp_path: Path, text: str) -> None:
    write_clip(tmp_path / "other.mp4")
    (tmp_path / "a.mp4").write_text(text)
    with pytest.raises(EaseError, match=r"a\.mp4' cannot be read \(it is no kind of video"):
        list(video_frames(tmp_path / "a.mp4", 1))


def test_the_path_of_a_video_is_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library takes what stands before a colon for a protocol, also in `http:/` with one slash."""
    monkeypatch.chdir(tmp_path)
    write_clip(tmp_path / "trip: day 1.mp4")
    assert [number for number, _ in video_frames(Path("trip: day 1.mp4"), 4)] == [0, 4, 8]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        place = f"127.0.0.1:{server.getsockname()[1]}"
        asked = [f"http:/{place}/x.mp4", f"cache:http:/{place}/x.mp4", "file:trip: day 1.mp4"]
        rows = list(listed_inputs(io.BytesIO("\n".join(asked).encode()), every=3))
        with pytest.raises(BlockingIOError):
            server.accept()
    assert [row.name for row in rows] == asked
    assert all("is not there" in str(row.content) for row in rows)


# -- continuing


class KilledError(Exception):
    """As if the process had ended here."""


def interrupted(inputs: Iterator[Input], after: int) -> Iterator[Input]:
    for number, each in enumerate(inputs):
        if number == after:
            raise KilledError
        yield each


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PART_ROWS", 4)
    monkeypatch.setattr("ease.app.bulk.predicting.BATCH_BYTES", -1)  # a batch for each image


@pytest.mark.usefixtures("small_parts")
def test_what_was_interrupted_is_continued_after_the_last_part(
    trained: Path, photos: Path, tmp_path: Path
) -> None:
    classifier, out = Classifier.open(trained), tmp_path / "o.jsonl"
    for after in (6, 15):
        with pytest.raises(KilledError):
            predict_to_file(classifier, interrupted(place_inputs([photos]), after), out)
        assert not out.exists()
    done = predict_to_file(classifier, place_inputs([photos]), out)
    assert (done.rows, done.errors, done.continued) == (21, 1, 12)
    assert [row["file"] for row in read(out)] == names(photos)
    assert not (tmp_path / "o.jsonl.parts").exists()


@pytest.mark.usefixtures("small_parts")
def test_other_inputs_models_or_options_do_not_continue(trained: Path, photos: Path, tmp_path: Path) -> None:
    classifier, out = Classifier.open(trained), tmp_path / "o.jsonl"
    with pytest.raises(KilledError):
        predict_to_file(classifier, interrupted(place_inputs([photos]), 10), out)
    with pytest.raises(EaseError, match="another number of classes"):
        predict_to_file(classifier, place_inputs([photos]), out, top_k=2)
    with pytest.raises(EaseError, match="its first images are not the ones"):
        predict_to_file(classifier, place_inputs([photos / "1"]), out)
    (photos / "0" / "0000.png").write_bytes((photos / "0" / "000.png").read_bytes())
    with pytest.raises(EaseError, match="its first images are not the ones"):
        predict_to_file(classifier, place_inputs([photos]), out)
    (photos / "0" / "0000.png").unlink()
    (tmp_path / "o.jsonl.parts" / "part-000001.jsonl").rename(tmp_path / "away")
    with pytest.raises(EaseError, match="part 1 is missing"):
        predict_to_file(classifier, place_inputs([photos]), out)
    (tmp_path / "away").rename(tmp_path / "o.jsonl.parts" / "part-000001.jsonl")
    assert predict_to_file(classifier, place_inputs([photos]), out).rows == 21


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("ending", FORMATS)
def test_a_crash_at_any_write_leaves_one_row_for_each_input(
    trained: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """Every n-th point at which a write could end is tried, and then the same command once more."""
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    from ease.storage import files

    classifier = Classifier.open(trained)
    given = [Input(f"{n}", np_png(n)) for n in range(6)]
    for crash in range(1, 200, 7):
        out, count = tmp_path / f"{crash}{ending}", 0

        def fault(point: str, path: Path, crash: int = crash) -> None:
            nonlocal count
            count += 1
            if count == crash:
                raise KilledError

        monkeypatch.setattr(files, "fault", fault)
        try:
            predict_to_file(classifier, given, out)
            ended = True
        except KilledError:
            ended = False
        monkeypatch.setattr(files, "fault", lambda point, path: None)
        if not ended and (Path(f"{out}.parts").exists() or not out.exists()):
            predict_to_file(classifier, given, out)
        assert [row["file"] for row in read(out)] == [each.name for each in given]
        assert not Path(f"{out}.parts").exists()
        if ended:
            return
    pytest.fail("there are more points than were tried")


def np_png(seed: int) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is counted as Linux does")
def test_what_cannot_be_decoded_is_not_kept(trained: Path, tmp_path: Path) -> None:
    with open(tmp_path / "zeros.png", "wb") as file:
        file.truncate(16 * 2**20)
    classifier = Classifier.open(trained)
    inputs = [Input(str(at), tmp_path / "zeros.png") for at in range(64)]
    line = in_little_memory(
        lambda: sum(row.error is not None for row in predict_stream(classifier, inputs)), tmp_path / "out"
    )
    assert line == "64"


def test_a_stream_holds_one_batch_of_inputs_at_a_time(trained: Path) -> None:
    pulled = 0

    def endless() -> Iterator[Input]:
        nonlocal pulled
        while True:
            pulled += 1
            yield Input(f"{pulled}", np_png(pulled % 3))

    found = predict_stream(Classifier.open(trained), endless())
    assert [next(found).file for _ in range(100)] == [f"{n}" for n in range(1, 101)]
    assert pulled == 128


def test_a_command_that_is_killed_twice_continues(
    ease: Ease, trained: Path, tmp_path: Path, digits: Digits
) -> None:
    """SIGKILL at random moments after a part was written; each of 60 images has one row in the end."""
    pytest.importorskip("pyarrow")
    photos = write_folder(tmp_path / "photos", digits("0", "1", "2", count=20))
    out = tmp_path / "o.parquet"
    words = ["predict", photos, "--model", trained, "--out", out]

    def slowly() -> None:
        output.PART_ROWS, predicting.BATCH_BYTES = 5, -1
        whole = output.predict_batch
        output.predict_batch = lambda *a: (time.sleep(0.02), whole(*a))[1]  # time to be killed in
        ease_command(*words)()

    state, rows = Path(f"{out}.parts") / "state.json", 0
    chance = random.Random(7)
    for _ in range(2):
        running = Forked(slowly, tmp_path / "printed")
        while running.poll() is None and not (
            state.exists() and json.loads(state.read_text())["rows"] > rows
        ):
            time.sleep(0.005)
        time.sleep(chance.random() * 0.1)
        running.send_signal(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
        assert not out.exists()
        rows = json.loads(state.read_text())["rows"]
    done = ease(*words)
    assert done.code == 0, done.err
    assert f"{rows} of them by an earlier command" in done.out
    assert [row["file"] for row in read(out)] == names(photos)
    assert not state.parent.exists()
