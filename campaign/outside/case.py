"""One input of the second campaign: how it is made, run in a limited process, and judged."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import io
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ADDRESS_SPACE = 5 << 30
RESIDENT = 1500 << 20
SECONDS = 30
NOBODY = 65534

HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
INTERNAL = re.compile(
    r"NoneType|object has no attribute|unhashable|not subscriptable|not callable|out of range\b.*index|Errno|"
    r"\b(Key|Type|Value|Attribute|Index|Assertion|Runtime|Zero[A-Za-z]*|Unicode[A-Za-z]*|OS|Recursion|Overflow)Error\b|"
    r"unsupported operand|positional argument|<class '|<function|0x[0-9a-f]{8,}|\.py\b[:\"]|site-packages"
)


@dataclass
class Case:
    """A command line with the files and the surroundings it meets.

    Attributes:
        family: one of the families of the campaign.
        label: what is wrong, unique within the family.
        argv: arguments of `ease`; relative paths are below the folder of the case.
        make: writes the files of the case into its folder.
        expect: `any`, `refused` (not 0) or `accepted` (0).
        env: variables to set, or to remove where the value is None.
        real: whether a new interpreter is needed, as for closed streams.
        stdout, stderr: `file`, `closed`, `pipe` (nobody reads) or `full` (a device without space).
        encoding: of both streams.
        nobody: whether rights are dropped, since root may read everything.
        check: looks at what a command left; returns a complaint or nothing.
        alongside: runs beside the command, in a thread of the parent.
        in_part: whether a command that fails may have done a part of its work.
    """

    family: str
    label: str
    argv: list[str | bytes]
    make: Callable[[Path], None] | None = None
    expect: str = "any"
    env: dict[str, str | None] = field(default_factory=dict)
    real: bool = False
    stdout: str = "file"
    stderr: str = "file"
    encoding: str = "utf-8"
    nobody: bool = False
    check: Callable[[Path, int, str], str | None] | None = None
    alongside: Callable[[Path], None] | None = None
    in_part: bool = False
    inputs: int = 1
    seconds: int = 3 * SECONDS


def snapshot(folder: Path) -> dict[str, tuple]:
    """What is below a folder: kinds, sizes and content hashes; nothing is opened but plain files."""
    found: dict[str, tuple] = {}
    for root, folders, names in os.walk(os.fsencode(folder)):
        for name in folders + names:
            path = os.path.join(root, name)
            with contextlib.suppress(OSError):
                facts = os.lstat(path)
                kind = stat.S_IFMT(facts.st_mode)
                digest = ""
                if kind == stat.S_IFREG and facts.st_size < 32 << 20:
                    with contextlib.suppress(OSError), open(path, "rb") as file:
                        digest = hashlib.md5(file.read()).hexdigest()
                size = facts.st_size if kind == stat.S_IFREG else 0
                found[os.fsdecode(os.path.relpath(path, os.fsencode(folder)))] = (kind, size, digest)
    return found


def give_back_memory() -> None:
    """Return freed memory to the system: what this process holds when it forks counts as the case's own."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _stream(kind: str, path: Path) -> int:
    if kind == "full":
        return os.open("/dev/full", os.O_WRONLY)
    if kind == "pipe":
        read, write = os.pipe()
        os.close(read)
        return write
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)


def _limits() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 31, 1 << 31))


def _child(
    case: Case, folder: Path, argv: list[str], environment: dict[str, str], outs: tuple[int, int]
) -> None:
    """Become the command: never returns."""
    code = 70
    try:
        os.setsid()
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(outs[0], 1)
        os.dup2(outs[1], 2)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        _limits()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        if case.nobody:
            import torch._dynamo  # noqa: F401 - the interpreter's own files may be out of reach afterwards

            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = io.TextIOWrapper(
            io.FileIO(1, "w", closefd=False), encoding=case.encoding, write_through=True
        )
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "w", closefd=False),
            encoding=case.encoding,
            errors="backslashreplace",
            write_through=True,
        )
        sys.argv = ["ease", *argv]
        from ease.cli import main

        try:
            value = main()
            code = value if isinstance(value, int) else 0
        except SystemExit as exit_:
            if isinstance(exit_.code, str):
                print(exit_.code, file=sys.stderr)
            code = 0 if exit_.code is None else exit_.code if isinstance(exit_.code, int) else 1
        except BaseException:
            traceback.print_exc()
            code = 71
        with contextlib.suppress(Exception):
            sys.stdout.flush()
    finally:
        os._exit(code)


def run(case: Case, folder: Path, source: Path) -> dict:
    """Run one case in a process of its own and say what was wrong with it.

    Args:
        case: the input.
        folder: an empty folder, for this case only.
        source: where the package lies.

    Returns:
        `code`, `seconds`, `memory` (bytes, at most) and `violations`.
    """
    inside = folder / "in"
    for path in (inside, folder / "tmp", folder / "home"):
        path.mkdir(parents=True, exist_ok=True)
    if case.make:
        case.make(inside)
    if case.nobody:
        os.chown(folder, NOBODY, NOBODY)
        for path in (inside, folder / "tmp", folder / "home"):
            os.chown(path, NOBODY, NOBODY)
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(source), "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8", "COLUMNS": "100",
        "HF_HUB_OFFLINE": "1", "MPLCONFIGDIR": str(folder.parent.parent / "mpl"),
    }  # fmt: skip
    for key, value in case.env.items():
        if value is None:
            environment.pop(key, None)
        else:
            environment[key] = value.replace("@CASE@", str(folder))
    argv = [a if isinstance(a, bytes) else os.fsencode(a.replace("@CASE@", str(folder))) for a in case.argv]
    out, err = folder / "stdout", folder / "stderr"
    outs = (_stream(case.stdout, out), _stream(case.stderr, err))
    before = snapshot(folder)
    began = time.monotonic()
    if case.real:
        pid = _spawn(case, inside, argv, environment, outs)
    else:
        give_back_memory()
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            _child(case, inside, [os.fsdecode(a) for a in argv], environment, outs)
    for descriptor in outs:
        os.close(descriptor)
    if case.alongside:
        case.alongside(inside)
    hung = False
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() - began > case.seconds:
            hung = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            break
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(status)
    result = {"code": code, "seconds": round(time.monotonic() - began, 2), "memory": usage.ru_maxrss * 1024}
    texts = [p.read_bytes().decode(case.encoding, "replace") if p.exists() else "" for p in (out, err)]
    result["violations"] = judge(case, folder, code, hung, texts, before, result["memory"])
    result["stderr"] = texts[1][-400:]
    return result


def _spawn(
    case: Case, inside: Path, argv: list[bytes], environment: dict[str, str], outs: tuple[int, int]
) -> int:
    def prepare() -> None:
        _limits()
        for kind, descriptor in ((case.stdout, 1), (case.stderr, 2)):
            if kind == "closed":
                os.close(descriptor)

    command = [
        os.fsencode(sys.executable),
        b"-c",
        b"import sys; from ease.cli import main; sys.exit(main())",
        *argv,
    ]
    for_process = subprocess.Popen(
        command, cwd=inside, env=environment, stdin=subprocess.DEVNULL, stdout=outs[0], stderr=outs[1],
        start_new_session=True, preexec_fn=prepare,
    )  # fmt: skip
    for_process.returncode = 0  # waited for by the caller
    return for_process.pid


def judge(
    case: Case, folder: Path, code: int, hung: bool, texts: list[str], before: dict, memory: int
) -> list[str]:
    """Compare what a command did with what is promised."""
    wrong = []
    out, err = texts
    if hung:
        return [f"hang: still running after {case.seconds} s"]
    if code not in (0, 1, 2, 130) and "--debug" not in case.argv:
        wrong.append(f"exit code {code}")
    for name, text in (("stdout", out), ("stderr", err)):
        if "--debug" in case.argv:
            continue
        if "FORCE_COLOR" in case.env:  # colours and bold letters are what it asks for, and nothing else
            text = re.sub(r"\x1b\[[0-9;]*m", "", text)
        if "Traceback (most recent" in text:
            wrong.append(f"traceback on {name}: {text.strip().splitlines()[-1][:200]}")
        if HIDDEN.search(text):
            wrong.append(f"control or invisible character on {name}: {HIDDEN.search(text).group()!r}")
    if re.search(r"\w+Warning: ", err):
        wrong.append("python warning: " + re.search(r".*\w+Warning: .*", err).group()[:200])
    lines = [line for line in err.splitlines() if line.strip()]
    if code == 2 and case.stderr == "file":
        errors = [line for line in lines if line.startswith("error: ")]
        told = re.compile(
            r"(error|note|warning): |stage |[\w.-]+: (failed: |\d+ of \d+ cells )"
        )  # cells of a grid
        others = [line for line in lines if not told.match(line)]
        if len(errors) != 1 or others:
            wrong.append(
                f"exit 2 with {len(errors)} error lines and {len(others)} others: {err.strip()[:300]!r}"
            )
        elif len(errors[0]) > 1500:
            wrong.append(f"style: error line of {len(errors[0])} characters")
        elif INTERNAL.search(errors[0]):
            wrong.append(f"style: message speaks of internals: {errors[0][:300]}")
    if case.expect == "refused" and code == 0:
        wrong.append(f"accepted, should be refused: {out.strip()[:200]!r}")
    if case.expect == "accepted" and code != 0:
        wrong.append(f"refused, should be accepted: {err.strip()[:300]}")
    if code == 0 and "--json" in case.argv and case.stdout == "file":
        try:
            json.loads(out, parse_constant=lambda word: 1 / 0)
        except (ValueError, ZeroDivisionError, RecursionError):
            wrong.append(f"--json is no strict JSON: {out[:120]!r}")
    after = snapshot(folder)
    changed = sorted(
        name
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name) and not name.startswith(("home", "stdout", "stderr"))
    )
    left = [name for name in changed if name.startswith("tmp/") or ".tmp-" in name]
    if left:
        wrong.append(f"temporary files left: {left[:4]}")
    if code not in (0,) and not case.alongside and not case.in_part:
        touched = [name for name in changed if name not in left and not name.endswith("/.lock")]
        if touched and code != 1:
            wrong.append(f"failed but changed files: {touched[:6]}")
    if memory > RESIDENT:
        wrong.append(f"{memory >> 20} MB of memory")
    if case.check:
        complaint = case.check(folder, code, out)
        if complaint:
            wrong.append(complaint)
    return wrong
