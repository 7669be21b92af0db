"""What the stand-in for `ease serve` knows: classes and jobs, and the levers that tests pull."""

from __future__ import annotations

from typing import Any

from tests.app.fake_daily import Daily, Refused

MAGIC = (b"\x89PNG", b"\xff\xd8", b"GIF8", b"RIFF", b"BM")
SCRIPT = [
    ("running", 0.1, "reading {images} images"),
    ("running", 0.4, "learning, epoch 2 of 5"),
    ("running", 0.8, "learning, epoch 4 of 5"),
    ("done", 1.0, "learned"),
]


class FakeModel(Daily):
    """What the stand-in knows, and the levers tests pull.

    Attributes:
        token: wanted from those who change the model.
        calibrated: whether predictions come with an unknown score.
        thumbnails: class id -> picture.
        tuned: whether the last learning was asked to take more time.
        patient: jobs stay where they are while this is set.
    """

    def __init__(self, known: dict[str, int] | None = None) -> None:
        super().__init__()
        self.token: str | None = None
        self.calibrated = True
        self.patient = False
        self.thumbnails: dict[int, bytes] = {}
        self.tuned: bool | None = None
        self.classes: list[dict[str, Any]] = []
        self.tasks: list[dict[str, Any]] = []
        self.jobs: list[dict[str, Any]] = []
        self.generation = 1
        if known:
            self.learn(known, date="2026-03-02T09:30:00+00:00")

    def learn(
        self, counts: dict[str, int], *, date: str = "2026-11-16T04:12:00+00:00", notes: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        known = {entry["name"]: entry for entry in self.classes}
        number = len(self.tasks) + 1
        new = [name for name in counts if name not in known]
        for name in counts:
            if name in known:
                known[name]["count"] += counts[name]
        ids = max((entry["id"] for entry in self.classes), default=-1) + 1
        self.classes += [
            {"id": ids + i, "name": name, "task": number, "count": counts[name]} for i, name in enumerate(new)
        ]
        held_out = sum(counts[name] for name in new) // 5
        self.tasks.append(
            {
                "task": number,
                "date": date,
                "classes": new,
                "extended": [name for name in counts if name in known],
                "images": sum(counts.values()) - held_out,
                "held_out": held_out,
                "accuracy": 87.5 if held_out else None,
                "notes": list(notes),
            }
        )
        self.generation += 1
        self.remember(self.tasks[-1])
        return self.tasks[-1]

    def remember(self, task: dict[str, Any]) -> None:
        """Add what was learned to the history."""
        parts = [
            f"{len(task['classes'])} new" if task["classes"] else "",
            "more photos" if task["extended"] else "",
        ]
        for entry in self.past:
            entry["current"] = False
        right = round(task["held_out"] * 0.875)
        self.past.append(
            {
                "generation": self.generation,
                "date": task["date"],
                "current": True,
                "what": "learned " + " and ".join(filter(None, parts)),
                "classes": task["classes"],
                "extended": task["extended"],
                "total": len(self.classes),
                "measured": {"right": right, "count": task["held_out"], "low": 68.1, "high": 95.0}
                if task["held_out"]
                else None,
                "known": [dict(entry) for entry in self.classes],
            }
        )

    def go_back(self, generation: int) -> dict[str, Any]:
        """Roll back to an earlier generation."""
        for entry in self.past:
            entry["current"] = entry["generation"] == generation
            if entry["current"]:
                self.classes = [dict(known) for known in entry["known"]]
                self.generation = generation
        return {"generation": self.generation, "classes": len(self.classes)}

    def step(self, job: dict[str, Any]) -> dict[str, Any]:
        """Move a job one step along its script."""
        if job["state"] in ("queued", "running") and not self.patient:
            job["state"], job["progress"], message = SCRIPT[job["at"]]
            job["message"] = message.format(images=sum(job["counts"].values()))
            job["at"] += 1
            if job["state"] == "running" and any("fail" in name for name in job["counts"]):
                job.update(
                    state="failed", error="there is no room left on the disk: free some, then teach again"
                )
            if job["state"] == "done":
                note = f"{sum(job['counts'].values())} images, 2 of them twice: one copy of each was used"
                job["learned"] = self.learn(job["counts"], notes=(note,))
                job["generation"] = self.generation
                if job.get("inbox"):
                    self.empty()
        return job

    def entry(self, number: str) -> dict[str, Any]:
        for entry in self.classes:
            if str(entry["id"]) == number:
                return entry
        raise Refused(404, f"there is no class {number}: ask /classes for those there are")

    def predict(self, file: str, content: bytes) -> dict[str, Any]:
        if not content.startswith(MAGIC):
            raise Refused(400, f"'{file}' is not an image that can be read: send a JPEG, PNG or WebP")
        if not self.classes:
            raise Refused(409, "the model knows no class yet: teach it some first")
        strange = "strange" in file
        said = self.told(content)
        start = self.names.index(said) if said else sum(content) % len(self.classes)
        order = (self.classes[start:] + self.classes[:start])[:5]
        shares = (0.824, 0.11, 0.05, 0.014, 0.002)
        if strange or "unsure" in file:
            shares = (0.41, 0.34, 0.12, 0.08, 0.05)
        elif "sure" in file or said:
            shares = (0.965, 0.02, 0.01, 0.004, 0.001)
        return {
            "file": file,
            "unknown": (0.83 if strange else 0.07) if self.calibrated else None,
            "is_unknown": strange and self.calibrated and not said,
            "corrected": said is not None,
            "classes": [
                {"name": entry["name"], "confidence": share}
                for entry, share in zip(order, shares, strict=False)
            ],
        }
