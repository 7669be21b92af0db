"""How the server answers, alone and while it learns.

Starts a real `ease serve` on a small model of glyphs, measures single predictions one after the other, then several
clients at once while a job learns more classes. Every answer is compared with its generation's offline confidences.
With --crowd, one client asks once more while others send as many large photos as a request may have.

    python benchmarks/serving.py [--clients 4] [--predictions 200] [--more 20] [--crowd 60]
"""

from __future__ import annotations

import argparse
import io
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from ease import Classifier
from ease.streams.datasets import load_dataset

KNOWN = 10
CROWDED = 60
"""Predictions of the one client beside the crowd."""


@dataclass
class Answers:
    """What clients got: (image, generation, confidences by class), milliseconds, and refusals."""

    found: list[tuple[int, int, dict[str, float]]] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def row(self, name: str) -> list[str]:
        p50, p95 = (f"{self.quantile(q):.1f}" for q in (0.5, 0.95))
        throughput = len(self.found) / self.seconds
        return [name, str(len(self.found)), str(len(self.errors)), p50, p95, f"{throughput:.1f}"]

    def quantile(self, share: float) -> float:
        return statistics.quantiles(self.milliseconds, n=100, method="inclusive")[round(share * 100) - 1]


class Server:
    """`ease serve` in a process of its own, with its log in a file."""

    def __init__(self, model: Path, log: Path) -> None:
        words = [sys.executable, "-m", "ease", "serve", "--model", str(model), "--port", "0"]
        with open(log, "w") as stderr:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr, text=True)
        assert self.process.stdout is not None
        found = re.search(r"http://\S+", self.process.stdout.readline())
        if found is None:
            raise SystemExit(log.read_text())
        self.address = found.group()
        with self.client() as client:
            while client.get("/readyz").status_code != 200:
                time.sleep(0.1)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=300)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait()


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def archive(classes: dict[str, list[np.ndarray]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as content:
        for name, images in classes.items():
            for i, image in enumerate(images):
                content.writestr(f"{name}/{i}.png", png(image))
    return buffer.getvalue()


def glyphs(count: int, per_class: int) -> tuple[dict[str, list[np.ndarray]], list[np.ndarray]]:
    """Classes to learn, and images to ask about."""
    data = load_dataset("glyphs", None, per_class)
    classes: dict[str, list[np.ndarray]] = {f"glyph {c}": [] for c in range(count)}
    for i, label in enumerate(data.train.labels.tolist()):
        if label < count:
            classes[f"glyph {label}"].append(data.train.image(i).permute(1, 2, 0).numpy())
    asked = [data.test.image(i).permute(1, 2, 0).numpy() for i in range(0, len(data.test), 7)][:60]
    return classes, asked


def ask(client: httpx.Client, images: list[bytes], order: list[int], into: Answers) -> None:
    for which in order:
        start = time.perf_counter()
        answer = client.post("/predict?top=1000", files={"image": ("a.png", images[which])})
        into.milliseconds.append((time.perf_counter() - start) * 1000)
        if answer.status_code != 200:
            into.errors.append(answer.text)
            continue
        told = answer.json()
        sure = {one["name"]: one["confidence"] for one in told["predictions"][0]["classes"]}
        into.found.append((which, told["generation"], sure))


def ask_together(server: Server, images: list[bytes], clients: int, predictions: int) -> Answers:
    parts = [Answers() for _ in range(clients)]

    def work(number: int) -> None:
        draw = np.random.RandomState(number)
        with server.client() as client:
            ask(client, images, draw.randint(0, len(images), predictions).tolist(), parts[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = Answers(seconds=time.perf_counter() - start)
    for part in parts:
        whole.found += part.found
        whole.milliseconds += part.milliseconds
        whole.errors += part.errors
    return whole


def ask_in_a_crowd(server: Server, images: list[bytes], crowd: int, most: int) -> tuple[Answers, int, int]:
    """One client, and beside it a crowd that sends `most` photos of 16 megapixels in each request.

    Returns:
        The answers to the one client, and how many requests of the crowd were answered and refused.
    """
    buffer = io.BytesIO()
    Image.radial_gradient("L").resize((4000, 4000)).convert("RGB").save(buffer, "JPEG", quality=60)
    files = [("image", (f"{i}.jpg", buffer.getvalue())) for i in range(most)]
    ended, codes = threading.Event(), []

    def press() -> None:
        with server.client() as client:
            while not ended.is_set():
                codes.append(client.post("/predict", files=files).status_code)

    threads = [threading.Thread(target=press) for _ in range(crowd)]
    for thread in threads:
        thread.start()
    time.sleep(5)  # until all of them have come
    one, start = Answers(), time.perf_counter()
    with server.client() as client:
        ask(client, images, [i % len(images) for i in range(CROWDED)], one)
    one.seconds = time.perf_counter() - start
    ended.set()
    for thread in threads:
        thread.join()
    return one, codes.count(200), len(codes) - codes.count(200)


def differences(
    model: Path, work: Path, asked: list[np.ndarray], answers: Answers
) -> dict[int, tuple[float, float]]:
    """By generation: how far any confidence was from the one computed offline, and what that is in logits.

    Confidences are a softmax of logits over a small temperature, which magnifies differences in the last bits.
    """
    found: dict[int, tuple[float, float]] = {}
    for generation in sorted({number for _, number, _ in answers.found}):
        copy = Path(shutil.copytree(model, work / f"generation-{generation}"))
        offline = Classifier.open(copy)
        offline.rollback(generation)
        expected = [
            dict(zip(p.names, p.confidences, strict=True)) for p in offline.predict(asked, top_k=1000)
        ]
        own = [(expected[which], sure) for which, number, sure in answers.found if number == generation]
        assert all(sure.keys() == offline_sure.keys() for offline_sure, sure in own)
        pairs = [(sure[name], there[name]) for there, sure in own for name in sure]
        confidences = max(abs(here - there) for here, there in pairs)
        seen = [math.log(here / there) for here, there in pairs if min(here, there) > 1e-6]
        found[generation] = (confidences, offline.calibration.temperature * max(map(abs, seen)))
    return found


def main() -> None:
    words = argparse.ArgumentParser(description="How the server answers, alone and while it learns.")
    words.add_argument("--clients", type=int, default=4)
    words.add_argument("--predictions", type=int, default=200, help="of each client")
    words.add_argument("--more", type=int, default=20, help="classes that the job learns")
    words.add_argument("--per-class", type=int, default=20, help="images that a class is learned from")
    words.add_argument("--input-size", type=int, default=None)
    words.add_argument("--crowd", type=int, default=0, help="clients that send 64 large photos at a time")
    options = words.parse_args()
    work = Path(tempfile.mkdtemp())
    try:
        measure(options, work)
    finally:
        shutil.rmtree(work)


def measure(options: Any, work: Path) -> None:
    classes, asked = glyphs(KNOWN + options.more, options.per_class)
    names = list(classes)
    model = Classifier.create(work / "model", augment="gentle", input_size=options.input_size)
    model.learn({name: classes[name] for name in names[:KNOWN]})
    images = [png(image) for image in asked]
    server = Server(model.path, work / "log")
    try:
        with server.client() as client:
            ask(client, images, list(range(5)), Answers())  # the first ones warm it up
            idle, start = Answers(), time.perf_counter()
            ask(client, images, [i % len(images) for i in range(options.predictions)], idle)
            idle.seconds = time.perf_counter() - start
            together = ask_together(server, images, options.clients, options.predictions)
            content = archive({name: classes[name] for name in names[KNOWN:]})
            job = client.post("/learn", files={"archive": ("more.zip", content)}).json()["job"]
            started = time.perf_counter()
            while (told := client.get(f"/jobs/{job}").json())["message"] != "learning" and not told["ended"]:
                time.sleep(0.1)  # its process loads torch first
            busy = ask_together(server, images, options.clients, options.predictions)
            while (told := client.get(f"/jobs/{job}").json())["state"] in ("queued", "running"):
                time.sleep(0.2)
            took = time.perf_counter() - started
            after = ask_together(server, images, 1, 20)
            if options.crowd:
                crowded, answered, refused = ask_in_a_crowd(server, images, options.crowd, 64)
    finally:
        code = server.stop()
    console = Console()
    table = Table("", "answers", "errors", "p50 ms", "p95 ms", "answers/s")
    table.add_row(*idle.row("1 client, idle"))
    table.add_row(*together.row(f"{options.clients} clients, idle"))
    table.add_row(*busy.row(f"{options.clients} clients, learning {options.more} classes"))
    if options.crowd:
        table.add_row(*crowded.row(f"1 client beside {options.crowd} with 64 photos of 16 megapixels each"))
    console.print(table)
    if options.crowd:
        slowest = max(crowded.milliseconds) / 1000
        console.print(
            f"beside the crowd an answer took {slowest:.1f} s at most; of the crowd's requests {answered} were "
            f"answered, {refused} refused"
        )
    old = sum(number != told["generation"] for _, number, _ in busy.found)
    console.print(f"{old} of the {len(busy.found)} last ones were answered by the old generation")
    console.print(
        f"the job: {told['state']} in {took:.1f} s, generation {told['generation']}; server left with {code}"
    )
    busy.found += idle.found + together.found + after.found
    for generation, (confidence, logit) in differences(model.path, work, asked, busy).items():
        verdict = "equal" if logit <= 1e-5 else "DIFFERENT"
        console.print(
            f"generation {generation}: logits differ from offline by {logit:.1e} at most ({verdict} to 1e-5), "
            f"confidences by {confidence:.1e}"
        )
    if busy.errors:
        console.print("first error:", busy.errors[0])


if __name__ == "__main__":
    main()
