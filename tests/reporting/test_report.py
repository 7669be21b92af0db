"""The report: complete, alone, safe to open, and fit for small and dark screens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ease.errors import EaseError
from ease.experiments.record import RunRecord
from ease.reporting.report import render_report, write_report

Make = Callable[..., RunRecord]
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Tags with their attributes, visible text, and whether every tag was closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.tags if tag == name]


@pytest.fixture(scope="module")
def full(three_methods: list[RunRecord]) -> str:
    return render_report(
        [r.model_copy(update={"notes": ["preset 'paper' gave alpha"]}) for r in three_methods]
    )


def test_it_tells_the_whole_study(full: str) -> None:
    page = Page(full)
    for words in (
        "3 methods met 50 classes in 10 tasks on a frozen ease-vit. EASE ends highest at 92.75 %",
        "What was run",
        "Summary",
        "Accuracy as classes arrive",
        "Task by task",
        "Forgetting by task",
        "Seconds, by phase",
        "Forward passes, by phase",
        "Parameters against accuracy",
        "Parameters and cost",
        "Configuration",
        "Versions",
        "torch 2.13.0",
        "preset 'paper' gave alpha",
        "1,000 at the last stage",
        "glyph 49",
        '"alpha": 0.1',
        "Peak, MB 612",
    ):
        assert words in page.text, words
    # The curve in two widths, one map per method, what was forgotten, and what it cost.
    drawn = Counter(attrs.get("class") for attrs in page.all("svg"))
    assert drawn == {"map": 3, "wide": 1, "slim": 1, "grid": 1, "bars": 2, "points": 1}


def test_it_stands_alone(full: str) -> None:
    page = Page(full)
    assert not page.all("script")
    assert not page.all("img")
    addresses = [attrs.get(name) for _, attrs in page.tags for name in ("src", "href", "xlink:href")]
    assert all(address.startswith(("#", "data:")) for address in addresses if address)
    assert "@import" not in full
    assert set(re.findall(r"url\((.)", full)) <= {"#"}
    (policy,) = (a["content"] for a in page.all("meta") if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_ids_are_unique_and_every_reference_has_its_target(full: str) -> None:
    page = Page(full)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', full)) | set(
        re.findall(r'aria-\w+by="([^"]+)"', full)
    )
    assert used <= set(ids)


def test_pictures_and_tables_have_words(full: str) -> None:
    page = Page(full)
    for attrs in page.all("svg"):
        assert attrs["role"] == "img"
        assert "EASE" in (attrs["aria-label"] or "") or "after each stage" in (attrs["aria-label"] or "")
    assert len(page.all("caption")) == len(page.all("table")) == 3
    assert all("scope" in attrs for attrs in page.all("th"))
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == 1


def test_pictures_take_their_colours_from_the_page(full: str) -> None:
    style, pictures = full.split("</style>", 1)
    drawn = set(re.findall(r"#[0-9a-f]{6}\b", pictures))
    # Only the numbers on full cells are the same on every page.
    assert drawn == {"#ffffff"}
    names = set(re.findall(r"var\(--(\w+)\)", pictures))
    dark = style[style.index("prefers-color-scheme: dark") :].split("}")[0]
    assert {"ink", "line0", "line2", "heat", "paper"} <= names
    for name in names:
        assert f"--{name}:" in dark
        assert style.count(f"--{name}:") == 3


def test_it_fits_a_phone(full: str) -> None:
    assert 'name="viewport" content="width=device-width' in full
    # Each table scrolls in its own frame, so that the page itself does not.
    assert len(re.findall(r'<div class="scroll"[^>]*>\s*<table', full)) == full.count("<table")


def test_names_from_records_are_only_text(make_record: Make) -> None:
    evil = "<script>alert(1)</script>\" onload='x'&amp;"
    record = make_record(
        stages=2,
        method=evil,
        dataset=evil,
        protocol=evil,
        backbone=evil,
        classes=[evil] * 10,
        notes=[evil],
        versions={evil: evil},
        config={evil: evil},
    )
    text = render_report([record])
    page = Page(text)
    assert not page.all("script")
    assert all(not name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert evil in page.text


def test_a_class_named_after_an_undecodable_folder_can_be_reported(make_record: Make, tmp_path: Path) -> None:
    path = write_report([make_record(stages=2, classes=["caf\udce9", *"abcdefghi"])], tmp_path / "r.html")
    assert "caf" in path.read_text("utf-8")


def test_streams_get_a_section_each(make_record: Make) -> None:
    records = [
        make_record(stages=2),
        make_record(stages=3, dataset="digits"),
        make_record("simplecil", stages=2),
    ]
    page = Page(render_report(records))
    assert len(page.all("section")) == 2
    assert "3 experiments on 2 streams" in page.text
    assert {"#s0", "#s1"} <= {attrs["href"] for attrs in page.all("a")}


def test_seeds_are_shown_with_their_deviation(make_record: Make) -> None:
    page = Page(render_report([make_record(stages=3, seed=seed) for seed in (1, 2)]))
    assert "±" in page.text
    assert "Seeds 1, 2" in page.text
    assert "standard deviation" in page.text


def test_settings_may_cut_a_stream_differently(make_record: Make) -> None:
    page = Page(render_report([make_record(stages=2), make_record(stages=3)]))
    assert "EASE (tasks=[5, 5])" in page.text
    assert "–" in page.text


def test_a_bare_record_is_enough(make_record: Make) -> None:
    missing = ("classes", "config", "versions", "notes", "peak_memory", "passes_repeated")
    record = make_record(stages=1, **dict.fromkeys(missing))
    page = Page(render_report([record]))
    assert "EASE met 5 classes in 1 task on" in page.text
    assert "best in bold" not in page.text
    assert "Versions" not in page.text


def test_with_many_methods_tables_turn_on_their_side_and_maps_are_folded(make_record: Make) -> None:
    names = ["ease", "simplecil", "finetune", "l2p", "lwf", "icarl", "der"]
    many, few = (Page(render_report([make_record(name, stages=2) for name in names[:n]])) for n in (7, 6))
    assert [attrs for attrs in few.all("details") if "open" in attrs]
    assert not [attrs for attrs in many.all("details") if "open" in attrs]
    assert "Method Accuracy Parameters" in many.text
    assert "10 classes, 200 images" in many.text
    assert "Figure EASE SimpleCIL" in few.text


def test_a_single_task_forgets_nothing_and_two_methods_need_no_scatter(make_record: Make) -> None:
    page = Page(render_report([make_record(stages=1), make_record("simplecil", stages=1)]))
    assert "Forgetting by task" not in page.text
    assert "Parameters against accuracy" not in page.text


def test_equal_records_give_equal_reports(make_record: Make) -> None:
    assert render_report([make_record(stages=2)]) == render_report([make_record(stages=2)])


def test_it_is_written_whole_into_a_new_folder(make_record: Make, tmp_path: Path) -> None:
    path = write_report([make_record(stages=2)], tmp_path / "runs" / "report.html", title="My study")
    assert path == tmp_path / "runs" / "report.html"
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
    assert "<h1>My study</h1>" in path.read_text("utf-8")


def test_no_record_no_report(tmp_path: Path) -> None:
    with pytest.raises(EaseError, match="no record"):
        write_report([], tmp_path / "report.html")
    assert not list(tmp_path.iterdir())
