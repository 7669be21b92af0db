"""The watch over a served model: silent on unchanged traffic, and it notices a change."""

from __future__ import annotations

import pytest
from benchmarks.drift import bursts, photos_until_alarm, single
from hypothesis import given
from hypothesis import strategies as st

from ease.app.drift import AnswerSummary, Change, DriftWatch, Window, changes, joined, z_score

USUAL = (0.06, 0.85)
DAY = "2026-11-18"


def window(photos: int, unknown: int, confidence: float = 0.9, per_request: int = 1) -> Window:
    """Requests of equal size, whose unknown photos come first."""
    found = Window()
    for first in range(0, photos, per_request):
        strange = max(0, min(per_request, unknown - first))
        found.add(AnswerSummary(per_request, per_request, strange, confidence * per_request, {}), DAY)
    return found


@pytest.mark.parametrize("traffic", [single, bursts])
def test_unchanged_traffic_gives_no_alarm(traffic) -> None:  # type: ignore[no-untyped-def]
    runs = [photos_until_alarm(traffic, seed, 3000, USUAL, USUAL) for seed in range(20)]
    assert sum(one is not None for one in runs) <= 1


@pytest.mark.parametrize("after", [(0.31, 0.85), (0.06, 0.70)])
def test_changed_traffic_gives_an_alarm_within_two_windows(after: tuple[float, float]) -> None:
    runs = [photos_until_alarm(single, seed, 1000, USUAL, after) for seed in range(20)]
    assert all(one is not None and one <= 400 for one in runs)


def test_a_change_that_is_certain_but_small_is_no_news() -> None:
    before, now = window(20_000, 1_200), window(20_000, 2_400)  # 6 and 12 %
    assert abs(z_score(before, now, Change("unknown", None, 0.06, 0.12))) > 15
    assert changes(before, now) == []
    assert [one.kind for one in changes(before, window(20_000, 4_000))] == ["unknown"]


def test_photos_of_one_request_count_as_one_piece_of_evidence() -> None:
    alone = changes(window(400, 40), window(400, 100))
    together = changes(window(400, 40, per_request=10), window(400, 100, per_request=10))
    assert [one.kind for one in alone] == ["unknown"]
    assert together == []


def test_with_one_photo_per_request_it_is_the_test_of_two_proportions() -> None:
    before, now = window(300, 18), window(300, 60)
    pooled = 78 / 600
    expected = (0.2 - 0.06) / (pooled * (1 - pooled) * (2 / 300)) ** 0.5
    assert z_score(before, now, Change("unknown", None, 0.06, 0.2)) == pytest.approx(expected)


def test_too_few_photos_or_requests_are_not_compared() -> None:
    assert changes(window(199, 0), window(200, 200)) == []
    assert changes(window(200, 0), window(1000, 1000, per_request=50)) == []
    assert changes(window(200, 0), window(200, 200)) != []


def test_an_uncalibrated_model_has_no_share_of_unknown() -> None:
    before, now = Window(), Window()
    for _ in range(200):
        before.add(AnswerSummary(1, 0, 0, 0.9, {}), DAY)
        now.add(AnswerSummary(1, 0, 0, 0.5, {}), DAY)
    assert [one.kind for one in changes(before, now)] == ["confidence"]


def test_an_alarm_remembers_when_it_began_and_ends_when_the_traffic_is_usual_again() -> None:
    watch = DriftWatch()

    def send(photos: int, unknown: bool, date: str) -> None:
        for _ in range(photos):
            watch.add(AnswerSummary(1, 1, int(unknown), 0.9, {} if unknown else {1: 1}), date)

    send(400, False, "2026-11-02")
    assert watch.recent is not None
    assert watch.changes() == []
    send(200, True, "2026-11-17")
    send(100, True, "2026-11-18")
    found = {one.kind: since for one, since in watch.changes()}
    assert set(found) == {"unknown", "class"}
    assert found["unknown"] == "2026-11-17"
    assert DriftWatch.model_validate_json(watch.model_dump_json()) == watch
    send(400, False, "2026-11-19")
    assert watch.changes() == []
    assert watch.since == {}


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.floats(0, 1)), min_size=2, max_size=30))
def test_joined_windows_are_the_window_of_all_requests(requests: list[tuple[int, int, float]]) -> None:
    answers = [AnswerSummary(n, n, min(n, u), n * c, {u: n - min(n, u)}) for n, u, c in requests]
    whole, first, second = Window(), Window(), Window()
    for number, answer in enumerate(answers):
        whole.add(answer, DAY)
        (first if number < len(answers) // 2 else second).add(answer, DAY)
    both = joined([first, second])
    assert (both.images, both.requests, both.unknown) == (whole.images, whole.requests, whole.unknown)
    assert both.confidence == pytest.approx(whole.confidence)
    assert both.classes.keys() == whole.classes.keys()
