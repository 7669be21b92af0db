"""Methods of other packages: found, run, and kept from doing harm. A package here is what pip would have left."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from ease.errors import EaseError
from ease.methods import Learner
from ease.methods import _registry as registry
from ease.methods.simplecil import SimpleCil
from tests.forked import Forked, ease_command
from tests.test_cli import ease, refused

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "tutorials" / "add-a-method.md").read_text(encoding="utf-8")
DIGITS = ["--dataset", "digits", "--protocol", "B0 Inc5", "--limit-per-class", "6", "--input-size", "16"]


def install(site: Path, package: str, entry: str, code: str | Path) -> None:
    """Lay down a module and the `dist-info` that names its method."""
    module = site / f"{entry.partition('=')[2].strip().partition(':')[0]}.py"
    if isinstance(code, Path):
        shutil.copy(code, module)
    else:
        module.write_text(code)
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ease.methods]\n{entry}\n")


def named(name: str) -> str:
    return (
        "from ease.methods.simplecil import SimpleCil\n"
        f"class Mine(SimpleCil):\n    name = {name!r}\n    idea = 'another [one]'\n"
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The guide's package, and others with all that can be wrong."""
    folder = tmp_path_factory.mktemp("site")
    entry = re.search(r'\[project\.entry-points\."ease\.methods"\]\n(\S+) = "(\S+)"\n', GUIDE)
    assert entry is not None
    install(folder, "ease-whitened", f"{entry[1]} = {entry[2]}", ROOT / "examples" / "my_method.py")
    install(folder, "acme-broken", "broken = acme_broken:Mine", "import no_such_library\n")
    install(folder, "acme-clash", "simplecil = acme_clash:Mine", named("simplecil"))
    install(folder, "acme-first", "twin = acme_first:Mine", named("twin"))
    install(folder, "acme-second", "twin = acme_second:Mine", named("twin"))
    return str(folder)


def outside(site: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as after `pip install`."""
    return subprocess.run(
        [sys.executable, "-m", "ease", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))},
        timeout=300,
    )


@pytest.fixture
def installed(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages in this process, for as long as a test runs."""
    registry.methods()
    for table in ("_methods", "_aliases", "_faults"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    monkeypatch.syspath_prepend(site)
    registry._discover.cache_clear()


def test_all_that_work_are_listed_and_each_other_one_gets_a_line(site: str) -> None:
    result = outside(site, "methods", "--json")
    assert result.returncode == 0, result.stderr
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["whitened"]["kind"] == "exemplar-free"
    assert set(registry.methods()) < set(rows)
    broken, clash, twin = result.stderr.strip().splitlines()
    assert broken.startswith("note: method 'broken' of package 'acme-broken' cannot be used:")
    assert "no_such_library" in broken
    assert "package 'acme-clash'" in clash
    assert "ease.methods.simplecil" in clash
    assert re.search("package 'acme-(first|second)'.* taken by acme_(first|second)", twin)


def test_it_runs_and_its_model_asks_for_it(site: str, tmp_path: Path) -> None:
    words = ["--method", "whitened", "--set", "shrinkage=0.2", "--out", tmp_path / "run"]

    def work() -> None:
        sys.path.insert(0, site)
        registry._discover.cache_clear()
        ease_command("run", *DIGITS, *words)()

    child = Forked(work, tmp_path / "printed")
    assert child.wait() == 0, child.out.read_text()
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["config"]["method"] == "whitened"
    assert record["config"]["settings"] == {"shrinkage": 0.2}
    assert record["last"] > 15
    line = refused(ease("eval", "--model", tmp_path / "run", "--dataset", "digits"))
    assert "unknown method 'whitened'" in line


@pytest.mark.usefixtures("installed")
def test_a_broken_one_is_refused_when_asked_for(tmp_path: Path) -> None:
    line = refused(ease("run", *DIGITS, "--method", "broken", "--out", tmp_path / "run"))
    assert "method 'broken' of package 'acme-broken' cannot be used: ModuleNotFoundError" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("installed")
def test_a_name_of_two_packages_means_neither(tmp_path: Path) -> None:
    line = refused(ease("run", *DIGITS, "--method", "twin", "--out", tmp_path / "run"))
    assert re.search("'twin' of package 'acme-(first|second)'.* taken by acme_(first|second)", line)


@pytest.mark.usefixtures("installed")
def test_our_names_stay_ours(tmp_path: Path) -> None:
    result = ease("run", *DIGITS, "--method", "simplecil", "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert registry.find_method("simplecil") is SimpleCil
    notes = json.loads((tmp_path / "run" / "record.json").read_text())["notes"]
    (note,) = [note for note in notes if "package 'acme-clash' cannot be used" in note]
    assert note in result.stdout


@pytest.mark.usefixtures("installed")
def test_in_the_terminal_names_stay_whole_and_brackets_are_no_markup() -> None:
    lines = ease("methods").stdout.splitlines()
    assert lines[0].split() == ["name", "kind", "tuning", "idea"]
    twin = next(line for line in lines if line.startswith("twin"))
    assert re.split("  +", twin.strip()) == ["twin", "exemplar-free", "none", "another [one]"]


class Unfinished(Learner):
    name: ClassVar[str] = "unfinished"
    idea: ClassVar[str] = "none yet"


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (dict, "must be a subclass"),
        (Unfinished, "Unfinished lacks adapt, costs, files, head"),
        (type("Nameless", (Learner,), {}), "Nameless has no 'name'"),
        (type("Loud", (SimpleCil,), {"name": "My_Method"}), "lower-case words joined by '-'"),
        (type("Odd", (SimpleCil,), {"name": "odd", "kind": "free"}), "of kind 'free'"),
        (type("Second", (SimpleCil,), {"name": "ease"}), "'ease' is taken by ease.methods.ease.method.Ease"),
        (
            type("Alias", (SimpleCil,), {"name": "aper-adapter"}),
            "'aper-adapter' is taken by ease.methods.adam",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_class_that_is_no_method_is_refused_in_one_line(wrong: type[Learner], line: str) -> None:
    before = registry.methods()
    with pytest.raises(EaseError, match=line):
        registry.register()(wrong)
    assert registry.methods() == before


def test_an_alias_cannot_take_over_a_method() -> None:
    registry.methods()
    with pytest.raises(EaseError, match="'ease' is taken"):
        registry.register("ease")(type("Sly", (SimpleCil,), {"name": "sly"}))
    assert registry.find_method("ease").__module__ == "ease.methods.ease.method"
    assert "sly" not in registry.methods()
