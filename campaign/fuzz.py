"""Inputs that nobody would send on purpose: `python -m campaign.fuzz --seconds 60`.

Each target takes bytes and gives them to the public interface as a manifest, a tensor file, an archive and so on. An
`EaseError` (or an answer below 500) is fine, and so is success; anything else is a finding: another exception, a
hang, or more memory than the limit. Inputs are made by hypothesis from the files of the corpus. What was found is
shrunk and written into the corpus, whose files the test suite replays.

Why hypothesis and not a coverage-guided fuzzer (atheris 3.0 installs on Linux): most of what is read is protected by
checksums, so that random bytes never get further than the first comparison. What is worth trying is a change of the
*meaning* under a right checksum, which is a strategy in hypothesis; its findings come shrunk; and it is a dependency
of the test suite already, on all systems.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

CORPUS = Path(__file__).parent.parent / "tests" / "faults" / "corpus"
MEMORY = 4 * 2**30
"""Bytes of address space; torch and its libraries take about half of them."""
LONGEST = 20
"""Seconds that one input may take."""


class Bench:
    """A small model and a server around it, for the targets to work on."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        import numpy as np
        from sklearn.datasets import load_digits

        from ease import Classifier

        self.folder, self._stack, self._client = folder, stack, None
        images = [np.repeat(i[:, :, None], 3, axis=2) for i in (load_digits().images * 15).astype(np.uint8)]
        self.image = images[0]
        self.origin = folder / "origin"
        self.model = Classifier.create(
            self.origin, input_size=16, settings={"layers": 1, "patches": False, "adapt": "never"}
        )
        self.model.learn({"one": images[:6], "two": images[6:12]}, thumbnails=True)
        self.manifest = json.loads((self.origin / "manifest.json").read_text(encoding="utf-8"))

    def copy(self) -> Path:
        """A model directory to spoil."""
        shutil.rmtree(self.folder / "model", ignore_errors=True)
        return Path(shutil.copytree(self.origin, self.folder / "model"))

    def opened(self, path: Path) -> None:
        """Open a model and ask it something; the answers must be numbers."""
        from ease import Classifier

        for answer in Classifier.open(path).predict([self.image]):
            assert all(0 <= confidence <= 1 for confidence in answer.confidences), answer

    @property
    def client(self) -> Any:
        """Of a server whose jobs end at once."""
        if self._client is None:
            from tests.app.serving import script, serving

            path = Path(shutil.copytree(self.origin, self.folder / "served"))
            self._client = self._stack.enter_context(serving(path, start=script(""))).client
        return self._client

    def ask(self, method: str, path: str, **options: Any) -> None:
        """Send a request; 500 and more is a finding, 503 and 507 (busy, full) are not."""
        answer = self.client.request(method, path, **options)
        assert answer.status_code < 500 or answer.status_code in (503, 507), (answer.status_code, answer.text)


def sealed(manifest: dict[str, Any]) -> bytes:
    """A manifest with a right checksum, as docs/format.md says."""

    def encoded(value: Any) -> bytes:
        try:
            return (json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()
        except UnicodeEncodeError:
            return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()

    body = {key: value for key, value in manifest.items() if key != "checksum"}
    return encoded({**body, "checksum": hashlib.sha256(encoded(body)).hexdigest()})


# --- targets --------------------------------------------------------------------------------------


def fuzz_manifest(bench: Bench, data: bytes) -> None:
    """The bytes are `manifest.json`."""
    path = bench.copy()
    (path / "manifest.json").write_bytes(data)
    bench.opened(path)


def fuzz_forged(bench: Bench, data: bytes) -> None:
    """The bytes are JSON, a list of `[path, value]`: changes of the manifest, which then gets a right checksum."""
    changed = json.loads(json.dumps(bench.manifest))
    for where, value in json.loads(data):
        _put(changed, where, value)
    path = bench.copy()
    (path / "manifest.json").write_bytes(sealed(changed))
    bench.opened(path)


def fuzz_tensors(bench: Bench, data: bytes) -> None:
    """The bytes are a tensor file, under the checksum and size that the manifest names; the first is its number."""
    names = sorted(bench.manifest["files"])
    name, data = names[(data[:1] or b"\0")[0] % len(names)], data[1:]
    changed = json.loads(json.dumps(bench.manifest))
    entry = changed["files"][name]
    entry.update(sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    path = bench.copy()
    (path / entry["path"]).write_bytes(data)
    (path / "manifest.json").write_bytes(sealed(changed))
    bench.opened(path)


def fuzz_archive(bench: Bench, data: bytes) -> None:
    """The bytes are what `ease pack` writes."""
    _command(bench, data, "model.ease", lambda path: ["unpack", str(path), str(bench.folder / "unpacked")])
    shutil.rmtree(bench.folder / "unpacked", ignore_errors=True)


def fuzz_weights(bench: Bench, data: bytes) -> None:
    """The bytes are a weights file: safetensors, or `.npz` if they begin like a zip."""
    ending = "npz" if data[:2] == b"PK" else "safetensors"
    _command(
        bench,
        data,
        f"weights.{ending}",
        lambda path: ["predict", str(_picture(bench)), "--model", str(bench.origin), "--weights", str(path)],
    )


def fuzz_golden(bench: Bench, data: bytes) -> None:
    """The bytes are a golden file of `ease verify`."""
    _command(bench, data, "golden.npz", lambda path: ["verify", str(path)])


def fuzz_record(bench: Bench, data: bytes) -> None:
    """The bytes are the `record.json` of a run."""
    folder = bench.folder / "run"
    folder.mkdir(exist_ok=True)
    _command(
        bench,
        data,
        "run/record.json",
        lambda path: ["report", str(folder), "--out", str(bench.folder / "page")],
    )
    _command(bench, data, "run/record.json", lambda path: ["compare", str(folder), str(folder)])


def fuzz_yaml(bench: Bench, data: bytes) -> None:
    """The bytes are a configuration file. It names no dataset that there is, so that nothing runs."""
    words = ["run", "--dataset", "none-such", "--out", str(bench.folder / "out")]
    _command(bench, data, "run.yaml", lambda path: [*words, "--config", str(path)])
    text = data.decode("utf-8", "replace").replace("\0", "")[:2000]
    _command(bench, data, "run.yaml", lambda path: [*words, "--set", f"settings.lr={text}"])


def fuzz_protocol(bench: Bench, data: bytes) -> None:
    """The bytes are a protocol, and a file with the order of classes. There are no images to run on."""
    text = data.decode("utf-8", "replace").replace("\0", "") or " "
    words = ["run", "--dataset", "digits", "--limit-per-class", "1", "--method", "none-such"]
    _command(bench, data, "order.txt", lambda path: [*words, "--protocol", text, "--class-order", str(path)])


def fuzz_image(bench: Bench, data: bytes) -> None:
    """The bytes are an image."""
    bench.model.predict([data])


def fuzz_table(bench: Bench, data: bytes) -> None:
    """The bytes are a table of paths and labels, as CSV, TSV, JSON lines or Parquet; the first says which."""
    endings = ("csv", "tsv", "jsonl", "parquet")
    _source(bench, data[1:], f"labels.{endings[(data[:1] or b'0')[0] % len(endings)]}")


def fuzz_coco(bench: Bench, data: bytes) -> None:
    """The bytes are labels in the form of COCO."""
    _source(bench, data, "labels.json")


def fuzz_shard(bench: Bench, data: bytes) -> None:
    """The bytes are a shard in the form of webdataset."""
    _source(bench, data, "shard.tar")


def fuzz_upload(bench: Bench, data: bytes) -> None:
    """The bytes are the body of a form, with the boundary `b`."""
    head = {"content-type": "multipart/form-data; boundary=b"}
    for path in ("/predict", "/learn"):
        bench.ask("POST", path, content=data, headers=head)


def fuzz_upload_archive(bench: Bench, data: bytes) -> None:
    """The bytes are a zip to learn from."""
    bench.ask("POST", "/learn", files={"archive": ("a.zip", data)})


def fuzz_upload_image(bench: Bench, data: bytes) -> None:
    """The bytes are an image, sent to be predicted and learned; its name is made of them, too."""
    name = data[:40].decode("utf-8", "replace") or "a"
    bench.ask("POST", "/predict", files={"image": (name, data)})
    bench.ask("POST", "/learn", files={"image": ("three/a.png", data)}, data={"name": name})


TARGETS: dict[str, Callable[[Bench, bytes], None]] = {
    name.removeprefix("fuzz_").replace("_", "-"): target
    for name, target in list(globals().items())
    if name.startswith("fuzz_")
}


def _source(bench: Bench, data: bytes, name: str) -> None:
    """Images to learn from, in a folder with one picture; what cannot be used is refused, and then left out."""
    from ease.errors import EaseError
    from ease.streams.intake import collect_images

    _picture(bench)
    path = bench.folder / name
    path.write_bytes(data)
    with contextlib.suppress(EaseError):
        collect_images(path)
    collect_images(path, unreadable="skip")


def _command(bench: Bench, data: bytes, name: str, words: Callable[[Path], list[str]]) -> None:
    """A command that reads the bytes from a file: it must end with 0, or with 2 and one line."""
    from campaign.faults import command

    path = bench.folder / name
    path.write_bytes(data)
    outcome = command(words(path))
    lines = [line for line in outcome.error.splitlines() if line.startswith("error: ")]
    assert outcome.code == 0 or (outcome.code == 2 and len(lines) == 1), outcome
    assert "Traceback" not in outcome.error, outcome.error


def _picture(bench: Bench) -> Path:
    from PIL import Image

    path = bench.folder / "picture.png"
    Image.fromarray(bench.image).save(path)
    return path


def _put(value: Any, where: list[Any], new: Any) -> None:
    """Put something at a place in nested lists and mappings; a place that is not there is left alone."""
    with contextlib.suppress(KeyError, IndexError, TypeError):
        for step in where[:-1]:
            value = value[step]
        if isinstance(value, list) and where[-1] == len(value):
            value.append(new)
        else:
            value[where[-1]] = new


def tried(bench: Bench, target: str, data: bytes) -> None:
    """Give bytes to a target; a refusal is fine, and taking longer than `LONGEST` is not."""
    from ease.errors import EaseError

    def late(*_: object) -> None:
        raise TimeoutError(f"longer than {LONGEST} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    try:
        TARGETS[target](bench, data)
    except EaseError as error:
        if "\n" in str(error):
            raise ValueError(f"more than one line: {error}") from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- inputs ---------------------------------------------------------------------------------------

_WORDS = (
    *(
        b"",
        b"\0",
        b"\xff" * 8,
        b"PK\x03\x04",
        b"PK\x05\x06",
        b"--b\r\n",
        b"\r\n\r\n",
        b"[" * 200,
        b"{",
        b"NaN",
        b"-1",
    ),
    *(
        b"99999999999999999999",
        b"1e999",
        b"!!python/object",
        b"&a [*a]",
        b"<<: *a",
        b"../../x",
        b"\xed\xa0\x80",
        b"B0 Inc0",
    ),
)
_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from([0, -1, 1, 2**31, 2**63, 10**7, 32000, 10**400, 0.5, 1e308, -0.0, 1e-320]),
        st.integers(-(2**70), 2**70),
        st.sampled_from(["", "\0", "\u202e", "a" * 5000, "../x", "fp16", "ease", "strata", "\ud800", "nan"]),
        st.text(max_size=8),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in nested lists and mappings; of long lists only the first ones."""
    yield here
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    )
    for key, one in inner:
        yield from places(one, (*here, key))


@st.composite
def changed_bytes(draw: st.DrawFn, files: list[bytes]) -> bytes:
    """A file of the corpus with some bytes changed, put in, left out or repeated."""
    data = draw(st.sampled_from(files))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, min(64, len(data) - at)))
        new = draw(
            st.one_of(st.sampled_from(_WORDS), st.binary(max_size=8), st.just(data[at : at + length] * 2))
        )
        data = data[:at] + new + data[at + length :]
    return data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) and draw(st.booleans()) else data


def _inputs(bench: Bench, target: str) -> st.SearchStrategy[bytes]:
    files = [path.read_bytes() for path in corpus(target)] + made(bench, target)
    if target == "forged":
        where = st.sampled_from([list(place) for place in places(bench.manifest) if place])
        change = st.tuples(where, _JSON)
        own = st.lists(change, min_size=1, max_size=3).map(lambda c: json.dumps(c).encode())
        return own | st.sampled_from(files)
    if target == "tensors":
        return changed_bytes(files) | _headers(bench)
    return changed_bytes(files)


@st.composite
def _headers(draw: st.DrawFn, bench: Bench) -> bytes:
    """A tensor file of the model with a changed header or with numbers that are none."""
    number, data = draw(st.sampled_from(list(enumerate(_tensor_files(bench)))))
    length = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    if draw(st.booleans()):
        for _ in range(draw(st.integers(1, 2))):
            _put(header, list(draw(st.sampled_from([p for p in places(header) if p]))), draw(_JSON))
    else:
        value = draw(st.sampled_from([b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\xff\xff", b"\0\0\0\0"]))
        rest = value * (len(rest) // 4) if draw(st.booleans()) else value + rest[4:]
    text = json.dumps(header).encode()
    return bytes([number]) + len(text).to_bytes(8, "little") + text + rest


def _tensor_files(bench: Bench) -> list[bytes]:
    files = bench.manifest["files"]
    return [(bench.origin / files[name]["path"]).read_bytes() for name in sorted(files)]


def corpus(target: str) -> list[Path]:
    """The stored inputs of a target."""
    folder = CORPUS / target
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


def made(bench: Bench, target: str) -> list[bytes]:
    """Good inputs that are made anew, since they depend on the version."""
    if target == "manifest":
        return [(bench.origin / "manifest.json").read_bytes()]
    if target == "tensors":
        return [bytes([number]) + data for number, data in enumerate(_tensor_files(bench))]
    if target == "archive":
        from campaign.faults import command

        out = bench.folder / "good.ease"
        assert out.exists() or command(["pack", str(bench.origin), "--out", str(out)]).code == 0
        return [out.read_bytes()]
    if target in ("image", "upload-image"):
        return [_encoded(bench, kind) for kind in ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "GIF")]
    if target == "upload-archive":
        return [_zipped({"three/a.png": _encoded(bench, "PNG"), "four/b.jpg": _encoded(bench, "JPEG")})]
    if target == "table":
        return [b"\0path,label\npicture.png,a\n", b'\2{"path": "picture.png", "label": "a"}\n', *_parquet()]
    if target == "coco":
        value = {
            "images": [{"id": 1, "file_name": "picture.png"}],
            "annotations": [{"image_id": 1, "category_id": 2}],
            "categories": [{"id": 2, "name": "a"}],
        }
        return [json.dumps(value).encode()]
    if target == "shard":
        return [
            _tarred({"a.png": _encoded(bench, "PNG"), "a.cls": b"1", "b.jpg": b"", "b.json": b'{"label": 2}'})
        ]
    if target == "upload":
        picture = _encoded(bench, "PNG")
        head = b'--b\r\nContent-Disposition: form-data; name="image"; filename="five/a.png"\r\n\r\n'
        return [head + picture + b"\r\n--b--\r\n"]
    return [b"[]" if target == "forged" else b""]


def _encoded(bench: Bench, kind: str) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(bench.image).save(buffer, kind)
    return buffer.getvalue()


def _tarred(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _parquet() -> list[bytes]:
    """A Parquet table, where pyarrow is installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return []
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"path": ["picture.png"], "label": ["a"]}), buffer)
    return [b"\3" + buffer.getvalue()]


def _zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


# --- running --------------------------------------------------------------------------------------


@contextlib.contextmanager
def new_bench() -> Iterator[Bench]:
    """A bench in a temporary folder, which is the working folder meanwhile."""
    import torch

    torch.set_num_threads(1)
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="ease-fuzz-") as folder, contextlib.ExitStack() as stack:
        os.chdir(folder)
        stack.callback(os.chdir, before)
        yield Bench(Path(folder), stack)


def explore(bench: Bench, target: str, examples: int, number: int) -> tuple[int, bytes | None, str]:
    """Try a number of inputs.

    Returns:
        How many were tried, and the smallest that was a finding with what it did, if there was one.
    """
    count, last = 0, b""
    why = ""

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(_inputs(bench, target))
    def attempt(data: bytes) -> None:
        nonlocal count, last, why
        count += 1
        try:
            tried(bench, target, data)
        except BaseException as error:
            last, why = data, f"{type(error).__name__}: {error}"[:500]
            raise

    try:
        attempt()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return count, last, why
    return count, None, ""


def replay(bench: Bench, names: list[str], examples: int = 8) -> int:
    """Try the stored inputs of these targets and a few others, always the same; findings are printed."""
    count, findings = 0, 0
    for name in names:
        for path in corpus(name):
            count += 1
            try:
                tried(bench, name, path.read_bytes())
            except BaseException as error:
                findings += 1
                print(f"FOUND {name} {path.name}: {type(error).__name__}: {error}"[:600], flush=True)
        more, found, why = explore(bench, name, examples, 0)
        count += more
        if found is not None:
            findings += 1
            print(f"FOUND {name} {found[:200]!r}: {why}", flush=True)
    print(f"{count} inputs, {findings} findings", flush=True)
    return 1 if findings else 0


def limit_memory(limit: int = MEMORY) -> None:
    """Refuse this process more address space."""
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> int:
    """Fuzz for a while, write findings into the corpus, and print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="where findings are written")
    parser.add_argument(
        "--replay", action="store_true", help="only the stored inputs, and a few new ones of each target"
    )
    given_words = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    limit_memory()
    counts: Counter[str] = Counter()
    findings: dict[str, str] = {}
    names = given_words.targets or list(TARGETS)
    end, turn = time.monotonic() + given_words.seconds, 0
    print(f"seed {given_words.seed}, {MEMORY / 2**30:.0f} GB of address space", flush=True)
    with new_bench() as bench:
        if given_words.replay:
            return replay(bench, names)
        while time.monotonic() < end:
            name = names[turn % len(names)]
            turn += 1
            count, found, why = explore(bench, name, 20, given_words.seed + turn)
            counts[name] += count
            if found is not None and why.split(":")[0] + name not in findings:
                findings[why.split(":")[0] + name] = why
                folder = given_words.corpus / name
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / f"found-{hashlib.sha256(found).hexdigest()[:12]}"
                path.write_bytes(found)
                print(f"FOUND {name} {path.name}: {why}", flush=True)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"{sum(counts.values())} inputs, {len(findings)} findings, {used:.0f} MB at most")
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
