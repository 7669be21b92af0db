"""A folder of predictions: one row for each input, whoever does which share and however often it is killed."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ease.app.bulk import folder as folder_module
from ease.app.bulk import index, predict_to_folder, source_inputs
from ease.app.bulk.folder import OneByOne, ShareDone, ShareWork
from ease.app.bulk.index import Share
from ease.app.classifier import Classifier
from ease.errors import EaseError
from ease.storage import files
from tests.app.conftest import LIGHT, Digits, Outcome, refused, write_folder
from tests.app.test_bulk import names, read

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


@pytest.fixture(autouse=True)
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index.shares, "__defaults__", (4,))


def rows(folder: Path) -> list[dict[str, Any]]:
    return [row for part in sorted(folder.glob("part-*")) for row in read(part)]


def written(model: Path, source: Path | str, to: Path, **options: Any) -> list[dict[str, Any]]:
    options = {"kind": "jsonl", **options}
    predict_to_folder(model, lambda: source_inputs(source), to, source=str(source), **options)
    return rows(to)


def shards(photos: Path, to: Path) -> Path:
    to.mkdir()
    for number, own in enumerate((names(photos)[:11], names(photos)[11:])):
        with tarfile.open(to / f"shard-{number}.tar", "w") as tar:
            for place, name in enumerate(own):
                content = Path(name).read_bytes()
                for ending, data in ((Path(name).suffix, content), (".cls", b"1")):
                    member = tarfile.TarInfo(f"{place:04d}{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return to


def test_lists_globs_tables_and_shards_give_the_same_answers(
    ease: Ease, trained: Path, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "list.txt").write_text("\n".join(names(photos)))
    (tmp_path / "table.csv").write_text("path\n" + "\n".join(names(photos)) + "\n")
    arrow = pytest.importorskip("pyarrow.parquet")
    arrow.write_table(pytest.importorskip("pyarrow").table({"path": names(photos)}), tmp_path / "t.parquet")
    tar = shards(photos, tmp_path / "tar")
    found = {}
    sources = ["list.txt", "table.csv", "t.parquet", "photos", "photos/**/*.*", f"{tar}/shard-{{0..1}}.tar"]
    for number, source in enumerate(sources):
        to = tmp_path / f"out{number}"
        done = ease("predict", "--from", tmp_path / source, "--model", trained, "--to", to)
        assert (done.code, done.err.splitlines()[-1]) == (1, "1 of 21 images could not be used")
        assert "wrote 21 rows to " in done.out
        assert "images/s)" in done.out
        found[source] = rows(to)
        assert sorted(path.name for path in to.iterdir()) == [
            *(f"part-{n:08d}.parquet" for n in range(6)),
            "summary.json",
        ]
    whole = tmp_path / "whole.parquet"
    ease("predict", photos, "--model", trained, "--out", whole)
    expected = found["photos"]
    # These were computed in other batches, on which the last bits depend.
    same = [(row["file"], row["error"], row["is_unknown"]) for row in read(whole)]
    assert [(row["file"], row["error"], row["is_unknown"]) for row in expected] == same
    for source, got in found.items():
        if source.endswith(".tar"):
            assert [row["file"][:11] for row in got] == ["shard-0.tar"] * 11 + ["shard-1.tar"] * 10
            got = [{**row, "file": "", "error": row["error"] and ""} for row in got]
            assert got == [{**row, "file": "", "error": row["error"] and ""} for row in expected]
        else:
            assert got == expected, source


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_every_part_can_be_read_by_itself(trained: Path, photos: Path, tmp_path: Path, kind: str) -> None:
    predict_to_folder(
        trained, lambda: source_inputs(photos), tmp_path / "out", source="x", kind=kind, top_k=2
    )
    found = rows(tmp_path / "out")
    assert [row["file"] for row in found] == names(photos)
    assert sum(bool(row["error"]) for row in found) == 1


def test_a_crash_at_any_write_leaves_one_row_for_each_input(
    trained: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = written(trained, photos, tmp_path / "whole")
    writes = 0

    def count(point: str, path: Path) -> None:
        nonlocal writes
        writes += point == "before-replace"

    with monkeypatch.context() as patch:
        patch.setattr(files, "fault", count)
        written(trained, photos, tmp_path / "counted")
    assert writes == 2 + 6 * 2 + 1  # index and state, six parts with their documents, the summary
    for struck in range(1, writes + 1):
        out, seen = tmp_path / f"out{struck}", 0

        def strike(point: str, path: Path, struck: int = struck) -> None:
            nonlocal seen
            seen += point == "before-replace"
            if seen == struck:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(files, "fault", strike)
            with pytest.raises(KeyboardInterrupt):
                written(trained, photos, out)
        assert not (out / "summary.json").exists()
        assert written(trained, photos, out) == expected
        assert not [path for path in out.rglob("*") if ".tmp-" in path.name or path.name == ".work"]


def test_only_what_is_not_written_is_done_again(
    trained: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    seen: list[int] = []

    class Three:
        """Is killed after three shares."""

        def run(self, work: ShareWork, left: list[Share]) -> Iterator[ShareDone]:
            yield from OneByOne().run(work, left[:3])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        written(trained, photos, out, executor=Three())
    (out / "part-00000001.jsonl").write_text("half a ")  # shorter than its document says
    (out / "part-00000002.jsonl").unlink()

    def listed() -> Iterator[Any]:
        raise AssertionError("the inputs were listed again")

    predict = folder_module.predict_batch

    def counted(*given: Any) -> Any:
        seen.append(len(given[1]))
        return predict(*given)

    monkeypatch.setattr(folder_module, "predict_batch", counted)
    done = predict_to_folder(trained, listed, out, source=str(photos), kind="jsonl")
    assert (done.rows, done.continued, done.errors) == (21, 4, 1)
    assert sum(seen) == 17
    assert [row["file"] for row in rows(out)] == names(photos)
    again = predict_to_folder(trained, listed, out, source=str(photos), kind="jsonl")
    assert (again.rows, again.continued, again.errors) == (21, 21, 1)


def test_a_share_that_two_processes_do_is_there_once(trained: Path, photos: Path, tmp_path: Path) -> None:
    class Twice:
        def run(self, work: ShareWork, left: list[Share]) -> Iterator[ShareDone]:
            for share in [*left, *reversed(left)]:
                if share.number % 2:
                    work.marker(share.number).unlink(missing_ok=True)
                yield work.do(share)

    assert written(trained, photos, tmp_path / "twice", executor=Twice()) == written(
        trained, photos, tmp_path / "once"
    )


def test_a_share_that_nobody_sees_is_noticed(trained: Path, photos: Path, tmp_path: Path) -> None:
    class Elsewhere:
        def run(self, work: ShareWork, left: list[Share]) -> Iterator[ShareDone]:
            yield from OneByOne().run(work, left[1:])

    with pytest.raises(EaseError, match=r"1 parts are missing in .*, the first is 0: all nodes must share"):
        written(trained, photos, tmp_path / "out", executor=Elsewhere())


def test_other_models_sources_options_and_folders_are_refused(
    ease: Ease, trained: Path, photos: Path, tmp_path: Path, digits: Digits
) -> None:
    out = tmp_path / "out"
    written(trained, photos, out)
    other = tmp_path / "model"
    Classifier.create(other, input_size=16, settings=LIGHT).learn(digits("3", "4", count=10))
    for key, arguments in {
        "source": {"source": "another"},
        "number of classes": {"top_k": 1},
        "format": {"kind": "csv"},
    }.items():
        given = {"source": str(photos), "kind": "jsonl", **arguments}
        with pytest.raises(EaseError, match=f"begun with another {key}"):
            predict_to_folder(trained, lambda: source_inputs(photos), out, **given)
    with pytest.raises(EaseError, match="begun with another model"):
        written(other, photos, out)
    with pytest.raises(EaseError, match="is not empty: choose another name"):
        written(trained, photos, photos)
    place = ["--from", photos, "--model", trained]
    assert "give --to DIR" in refused(ease("predict", *place, "--ray=local"))
    assert "give --to DIR" in refused(ease("predict", *place, "--format", "csv"))
    assert "exclude each other" in refused(ease("predict", *place, "--to", out, "--json"))
    assert "from --from" in refused(ease("predict", photos, "--model", trained, "--to", tmp_path / "new"))
    assert "did you mean 'parquet'" in refused(
        ease("predict", *place, "--to", tmp_path / "new", "--format", "parket")
    )
    assert not (tmp_path / "new").exists()


def test_the_model_must_not_change_meanwhile(
    trained: Path, photos: Path, tmp_path: Path, digits: Digits
) -> None:
    model = tmp_path / "model"
    Classifier.create(model, input_size=16, settings=LIGHT).learn(digits("0", "1", count=10))

    class Grows:
        def run(self, work: ShareWork, left: list[Share]) -> Iterator[ShareDone]:
            Classifier.open(model).learn(digits("5", count=10))
            yield from OneByOne().run(work, left)

    with pytest.raises(EaseError, match="has changed since the command was started"):
        written(model, photos, tmp_path / "out", executor=Grows())


def test_names_that_are_no_text_keep_their_files(trained: Path, photos: Path, tmp_path: Path) -> None:
    good = next(name for name in names(photos) if not name.endswith("bad.jpg"))
    try:
        Path(good).rename(photos / os.fsdecode(b"\xff.png"))
    except OSError:
        pytest.skip("the file system has no such names")
    found = written(trained, photos, tmp_path / "out")
    assert len(found) == 21
    assert sum(row["error"] is not None for row in found) == 1
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["errors"] == 1
