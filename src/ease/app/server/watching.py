"""What the model is asked, as metrics for Prometheus; the number of labels is bounded."""

from __future__ import annotations

from collections.abc import Iterator

from ease.app.activity import CLASSES_SHOWN, Activity
from ease.storage.manifest import Manifest


def activity_text(activity: Activity, manifest: Manifest | None) -> str:
    """Counters since the start of the process, and whether something has changed since the model learned.

    The first classes that were seen have a counter of their own, the rest share the one with the empty id: with the
    most frequent ones instead, counters would go down when one class overtakes another.
    """
    return "".join(f"{line}\n" for line in _lines(activity, manifest))


def _lines(activity: Activity, manifest: Manifest | None) -> Iterator[str]:
    counts = activity.since_start
    names = {} if manifest is None else {entry.id: entry.name for entry in manifest.classes}
    yield from _about("ease_answers_judged_total", "counter", "images whose answer says how unknown they are")
    yield f"ease_answers_judged_total {counts.judged}"
    yield from _about("ease_answers_unknown_total", "counter", "of these, images that look like no class")
    yield f"ease_answers_unknown_total {counts.unknown}"
    yield from _about("ease_answers_confidence_total", "counter", "sum of the confidences of all images")
    yield f"ease_answers_confidence_total {counts.confidence:.9g}"
    yield from _about(
        "ease_answers_class_total",
        "counter",
        f"images by the class they were taken for, at most {CLASSES_SHOWN} of them",
    )
    seen = list(dict(counts.classes).items())
    for each, count in seen[:CLASSES_SHOWN]:
        if each in names:  # a class that was forgotten leaves no name
            yield f'ease_answers_class_total{{id="{each}",class="{escaped(names[each])}"}} {count}'
    known = sum(count for _, count in seen[:CLASSES_SHOWN])
    rest = counts.images - counts.unknown - known
    yield f'ease_answers_class_total{{id="",class="other"}} {max(0, rest)}'
    yield from _about("ease_drift_notes", "gauge", "figures that left their range since the model learned")
    yield f"ease_drift_notes {0 if manifest is None else activity.alarms(manifest)}"


def escaped(text: str) -> str:
    """The value of a label."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _about(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
