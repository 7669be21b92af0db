"""Datasets of other packages: found, loaded, and kept from doing harm. A package here is what pip would have left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ease.errors import EaseError
from ease.streams import Dataset, DatasetLoader, DatasetRequest, datasets, load_dataset
from ease.streams.datasets import registry
from ease.streams.datasets.check import check_dataset
from ease.streams.datasets.digits import Digits
from tests.test_cli import ease, refused


def install(site: Path, package: str, entry: str, code: str) -> None:
    """Lay down a module and the `dist-info` that names its dataset."""
    module = entry.partition("=")[2].strip().partition(":")[0]
    (site / f"{module}.py").write_text(code)
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ease.datasets]\n{entry}\n")


def guide() -> str:
    """The example in the package's docstring."""
    assert datasets.__doc__ is not None
    block = re.search(r"::\n\n((?:    .*\n|\n)+)\nA dataset of files", datasets.__doc__)
    assert block is not None
    return re.sub("^    ", "", block[1], flags=re.MULTILINE)


def named(name: str) -> str:
    return f"from ease.streams.datasets.digits import Digits\nclass Mine(Digits):\n    name = {name!r}\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("site")
    assert datasets.__doc__ is not None
    entry = re.search(r'"ease\.datasets"\]\n +(\S+) = "my_package:(\S+)"', datasets.__doc__)
    assert entry is not None
    install(folder, "acme-stripes", f"{entry[1]} = acme_stripes:{entry[2]}", guide())
    install(folder, "acme-broken-data", "broken = acme_broken_data:Mine", "import no_such_library\n")
    install(folder, "acme-clash-data", "digits = acme_clash_data:Mine", named("digits"))
    install(folder, "acme-first-data", "twin = acme_first_data:Mine", named("twin"))
    install(folder, "acme-second-data", "twin = acme_second_data:Mine", named("twin"))
    install(folder, "acme-other-name", "other = acme_other_name:Mine", named("another"))
    install(folder, "acme-object", "object = acme_object:mine", named("object") + "mine = Mine()\n")
    code = "from ease.streams import DatasetLoader\nclass Mine(DatasetLoader):\n    name = about = 'unfinished'\n"
    install(folder, "acme-unfinished", "unfinished = acme_unfinished:Mine", code)
    return str(folder)


def outside(site: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as after `pip install`."""
    path = os.pathsep.join([site, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "ease", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=300,
    )


@pytest.fixture
def installed(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages in this process, for as long as a test runs."""
    registry.dataset_list()
    for table in ("_loaders", "_faults"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    monkeypatch.syspath_prepend(site)
    registry._discover.cache_clear()


@pytest.mark.usefixtures("installed")
def test_all_that_work_are_listed_and_each_other_one_gets_a_line() -> None:
    known = registry.dataset_list()
    assert {"stripes", "object", "twin", *datasets.dataset_list()} <= set(known)
    assert not {"broken", "other", "another", "unfinished"} & set(known)
    faults = registry.dataset_faults()
    assert set(faults) == {"broken", "digits", "other", "twin", "unfinished"}
    assert faults["broken"].startswith("dataset 'broken' of package 'acme-broken-data' cannot be used:")
    assert "no_such_library" in faults["broken"]
    assert "taken by ease.streams.datasets.digits.Digits" in faults["digits"]
    assert re.search("package 'acme-(first|second)-data'.* taken by acme_(first|second)_data", faults["twin"])
    assert "its name is 'another'" in faults["other"]
    assert "Mine lacks load" in faults["unfinished"]


@pytest.mark.usefixtures("installed")
def test_the_example_of_the_guide_is_a_dataset() -> None:
    stripes = load_dataset("stripes", limit_per_class=4)
    assert stripes.class_names == ("horizontal", "vertical")
    assert np.bincount(stripes.train.labels).tolist() == [4, 4]
    assert check_dataset("stripes").lines() == ["note: nothing to check: stripes has no files of its own"]


@pytest.mark.usefixtures("installed")
def test_a_broken_one_is_refused_when_asked_for() -> None:
    for name in ("broken", "twin", "unfinished"):
        with pytest.raises(EaseError, match=f"dataset '{name}' of package 'acme-.*' cannot be used"):
            load_dataset(name)
        with pytest.raises(EaseError, match="cannot be used"):
            check_dataset(name)


@pytest.mark.usefixtures("installed")
def test_our_names_stay_ours_and_a_note_says_that_another_wanted_one() -> None:
    digits = load_dataset("digits")
    assert type(registry.find_dataset("digits")) is Digits
    assert any("package 'acme-clash-data' cannot be used" in note for note in digits.notes)


@pytest.mark.usefixtures("installed")
def test_the_command_lists_them_and_refuses_the_broken_one(site: str, tmp_path: Path) -> None:
    result = outside(site, "datasets", "--json")
    assert result.returncode == 0, result.stderr
    assert "stripes" in {row["name"] for row in json.loads(result.stdout)}
    notes = result.stderr.strip().splitlines()
    assert [re.match(r"note: dataset '(\S+)' of package", line)[1] for line in notes] == [  # type: ignore[index]
        "broken",
        "digits",
        "other",
        "twin",
        "unfinished",
    ]
    words = ["run", "--dataset", "broken", "--method", "simplecil", "--out", str(tmp_path / "run")]
    line = refused(ease(*words))
    assert "dataset 'broken' of package 'acme-broken-data' cannot be used: ModuleNotFoundError" in line


class Unnamed(DatasetLoader):
    about = "no name"

    def load(self, request: DatasetRequest) -> Dataset:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (dict, "must be a subclass of ease.streams.DatasetLoader"),
        (Unnamed(), "Unnamed has no 'name'"),
        (type("Silent", (Digits,), {"name": "silent", "about": ""})(), "Silent has no 'about'"),
        (type("Loud", (Digits,), {"name": "My_Data"})(), "lower-case words joined by '-'"),
        (
            type("Second", (Digits,), {"name": "glyphs"})(),
            "'glyphs' is taken by ease.streams.datasets.glyphs",
        ),
        (Digits(), "'digits' is taken by ease.streams.datasets.digits.Digits"),
    ],
)
def test_what_is_no_dataset_is_refused_in_one_line(wrong: DatasetLoader, line: str) -> None:
    before = registry.dataset_list()
    with pytest.raises(EaseError, match=line):
        registry.register(wrong)
    assert registry.dataset_list() == before


def test_listing_datasets_loads_no_data() -> None:
    code = "from ease.streams import dataset_list; dataset_list(); import sys; assert 'sklearn' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
    assert "glyphs" in ease("datasets").stdout
