"""A day with a classifier: it answers, people correct it, it learns from that, and one can go back.

The same story twice: with the commands, then in a browser on the page of a real server. The script prints what happens
and fails if a promise is broken.

python examples/daily_loop.py                    # with drawn letters, which need no download
python examples/daily_loop.py --photos FOLDER    # with your photos: one folder per class, 18 photos or more in each
python examples/daily_loop.py --no-browser       # only the commands
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from ease.streams.datasets import load_dataset

LETTERS = "BDEGP"  # they look alike, so that a few photos are not enough
TAUGHT, SHOWN, CORRECTED, NAMED = 6, 12, 2, 6
ENDINGS = {".jpg", ".jpeg", ".png", ".webp"}


class BrokenPromiseError(Exception):
    """Something that ease says it does, and did not do."""


def promise(kept: bool, what: str) -> None:
    """Stop here if it was not kept."""
    if not kept:
        raise BrokenPromiseError(what)


@dataclass
class Story:
    """The photos of one telling, and what is known about them."""

    place: Path
    truth: dict[str, str] = field(default_factory=dict)  # name of the file -> what it shows

    promise = staticmethod(promise)

    def ease(self, *words: str, quiet: bool = False) -> str:
        """Run a command as a person would, show it with what it says, and return that."""
        if not quiet:
            print(f"$ ease {shlex.join(words)}")
        done = subprocess.run(
            [sys.executable, "-m", "ease", *words],
            cwd=self.place,
            capture_output=True,
            text=True,
            check=False,
        )
        promise(done.returncode == 0, f"ease {words[0]} ended with {done.returncode}: {done.stderr.strip()}")
        if not quiet:
            print(done.stdout.rstrip())
        return done.stdout

    def answers(self, *photos: str, model: str = "model") -> dict[str, dict[str, Any]]:
        """What the model says to photos or folders: the name of each file and its prediction."""
        said = json.loads(self.ease("predict", *photos, "--model", model, "--json", quiet=True))
        return {Path(each["file"]).name: each for each in said["predictions"]}

    def right(self, answers: dict[str, dict[str, Any]]) -> int:
        """How many of these are answered rightly."""
        return sum(name_of(each) == self.truth[file] for file, each in answers.items())


def name_of(prediction: dict[str, Any]) -> str:
    """The class that is named first."""
    return str(prediction["classes"][0]["name"])


def prepare(place: Path, photos: Path | None) -> Story:
    """Copy photos of five classes: few to learn from in `learn`, others in `new`, and some for the end in `later`."""
    story = Story(place)
    parts = {
        "learn": slice(0, TAUGHT),
        "new": slice(TAUGHT, TAUGHT + SHOWN),
        "later": slice(TAUGHT + SHOWN, None),
    }
    for name, pictures in (of_folder(photos) if photos else of_letters()).items():
        for part, those in parts.items():
            (place / part / name).mkdir(parents=True)
            for at, picture in list(enumerate(pictures))[those]:
                file = f"{name.replace(' ', '-')}-{at:02d}.png"
                picture.save(place / part / name / file)
                story.truth[file] = name
    return story


def of_letters() -> dict[str, list[Image.Image]]:
    """Drawn letters in many typefaces, large enough to look at."""
    data = load_dataset("glyphs")
    found = {}
    for letter in LETTERS:
        label = data.class_names.index(letter)
        images = [
            image
            for part, most in ((data.train, TAUGHT), (data.test, 100))
            for images in [part.of_classes([label]).limit(most)]
            for image in (images.image(at).permute(1, 2, 0).numpy() for at in range(len(images)))
        ]
        found[letter] = [
            Image.fromarray(image).resize((256, 256), Image.Resampling.BICUBIC) for image in images
        ]
    return found


def of_folder(root: Path) -> dict[str, list[Image.Image]]:
    """The photos of the first five folders that have enough."""
    promise(root.is_dir(), f"there is no folder {root}")
    found: dict[str, list[Image.Image]] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS)
        if len(files) >= TAUGHT + SHOWN and len(found) < len(LETTERS):
            found[folder.name] = [ImageOps.exif_transpose(Image.open(path)).convert("RGB") for path in files]
    promise(
        len(found) == len(LETTERS), f"{root} has fewer than five folders with {TAUGHT + SHOWN} photos each"
    )
    return found


def variants(story: Story, files: list[str]) -> None:
    """Slightly different versions of these photos: cropped, tilted, brighter; written to `variants`."""
    (story.place / "variants").mkdir(exist_ok=True)
    for file in files:
        picture = Image.open(story.place / "new" / story.truth[file] / file)
        width, height = picture.size
        changed = {
            "cropped": picture.crop((width // 20, height // 20, width - width // 20, height - height // 20)),
            "tilted": picture.rotate(5, Image.Resampling.BICUBIC, fillcolor=picture.getpixel((0, 0))),
            "brighter": picture.point(lambda value: min(255, round(1.15 * value))),
        }
        for how, image in changed.items():
            name = f"{Path(file).stem}-{how}.png"
            image.save(story.place / "variants" / name)
            story.truth[name] = story.truth[file]


def by_commands(story: Story) -> None:
    """The story with the command line."""
    story.ease("learn", "learn", "--model", "model", "--thumbnails")
    story.ease("predict", "new", "--model", "model", "--top", "2", "--collect-unsure", "20")
    answers, later = story.answers("new"), story.answers("later")
    inbox = json.loads(story.ease("inbox", "--model", "model", "--json", quiet=True))["photos"]
    unsure = {each["file"]: each["id"] for each in inbox}
    wrong = [file for file in answers if name_of(answers[file]) != story.truth[file]]
    told = [file for file in wrong if file not in unsure][:CORRECTED]
    print(f"  {len(wrong)} of {len(answers)} answers are wrong, {len(unsure)} photos are in the inbox\n")
    promise(len(told) == CORRECTED, "the model makes too few mistakes for this story")
    promise(len(unsure) >= NAMED, f"the model is unsure of {len(unsure)} photos only")

    for file in told:
        path = f"new/{story.truth[file]}/{file}"
        story.ease("correct", path, story.truth[file], "--model", "model")
        said = story.answers(path)[file]
        promise(name_of(said) == story.truth[file] and said["corrected"], f"{file} is still answered wrongly")
    named = sorted(unsure)[:NAMED]
    names = [word for file in named for word in ("--name", f"{unsure[file][-4:]}={story.truth[file]}")]
    print()
    story.ease("inbox", "--model", "model", *names)

    seen = [*told, *named]
    variants(story, seen)
    before = story.answers("variants")
    print()
    said = story.ease("learn", "--inbox", "--model", "model")
    promise(f"from {len(seen)} images" in said, f"not all of the {len(seen)} photos were learned")
    after = story.answers("new", "variants")
    mine = {file: after[file] for file in seen}
    versions = {file: after[file] for file in before}
    promise(story.right(mine) == len(seen), "a photo that a person named is answered wrongly")
    rest = json.loads(story.ease("inbox", "--model", "model", "--json", quiet=True))["photos"]
    promise({each["file"] for each in rest} == set(unsure) - set(named), "the inbox keeps the wrong photos")
    print(
        f"  the {len(seen)} named photos: {story.right(mine)} answered rightly (before: {len(set(seen) - set(wrong))})"
    )
    print(
        f"  changed versions of them: {story.right(versions)} of {len(versions)} (before: {story.right(before)})"
    )
    now = story.answers("later")
    print(f"  photos it has never seen: {story.right(now)} of {len(now)} (before: {story.right(later)})\n")

    story.ease("rollback", "--model", "model")
    story.ease("rollback", "1", "--model", "model")
    back = story.answers("new")
    promise(
        {f: name_of(a) for f, a in back.items()} == {f: name_of(a) for f, a in answers.items()},
        "an answer of generation 1 has changed",
    )
    story.ease("rollback", "2", "--model", "model")
    again = story.answers("new")
    promise(all(again[file]["corrected"] for file in seen), "going forward again lost a correction")
    print("  back in generation 1 every answer is as it was, and forward again the corrections are there\n")


def main() -> None:
    """Tell the story with commands, then in a browser."""
    parser = argparse.ArgumentParser(description="A day with a classifier, with commands and in a browser.")
    parser.add_argument("--photos", type=Path, help="one folder per class; default: drawn letters")
    parser.add_argument("--pictures", type=Path, help="write pictures of the page into this folder")
    parser.add_argument("--no-browser", action="store_true", help="only the commands")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        try:
            story = prepare(Path(place), chosen.photos)
            by_commands(story)
            if not chosen.no_browser:
                from daily_loop_page import in_the_browser

                in_the_browser(story, chosen.pictures)
        except BrokenPromiseError as broken:
            sys.exit(f"broken promise: {broken}")
    print("every promise was kept")


if __name__ == "__main__":
    main()
