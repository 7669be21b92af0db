"""Options that several commands have, and functions that read their values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast, get_args

import typer

from ease.cluster import HERE, looks_like_address
from ease.errors import EaseError, unknown

if TYPE_CHECKING:
    from ease.experiments.executors import Executor
    from ease.training.hardware import AskedPrecision

NEW_MODEL = "Options for a new model"
DATA = "Data"
SETTINGS = "Method and settings"
HARDWARE = "Hardware and memory"

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting; can be given several times.",
        rich_help_panel=SETTINGS,
    ),
]
MethodSets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting of the method; can be given several times.",
        rich_help_panel=NEW_MODEL,
    ),
]
ModelDirectory = Annotated[Path, typer.Option(help="Model directory.")]
SavedModel = Annotated[Path, typer.Argument(help="Model directory, or the folder of a run.")]
Dataset = Annotated[str | None, typer.Option(help="Dataset, see 'ease list datasets'.", rich_help_panel=DATA)]
DataRoot = Annotated[Path | None, typer.Option(help="Folder of the dataset.", rich_help_panel=DATA)]
LimitPerClass = Annotated[
    int | None,
    typer.Option(metavar="N", help="Use at most this many images of each class.", rich_help_panel=DATA),
]
Backbone = Annotated[
    str | None, typer.Option(help="Backbone, see 'ease list backbones'.", rich_help_panel=SETTINGS)
]
InputSize = Annotated[
    int | None, typer.Option(help="Side length of the input in pixels.", rich_help_panel=SETTINGS)
]
Preset = Annotated[
    str | None,
    typer.Option(help="Named settings, see 'ease list presets'.", rich_help_panel=SETTINGS),
]
NewMethod = Annotated[
    str | None,
    typer.Option(
        help="Any exemplar-free method, see 'ease list methods'; default: strata.",
        rich_help_panel=NEW_MODEL,
    ),
]
NewBackbone = Annotated[
    str | None,
    typer.Option(help="Backbone, see 'ease list backbones'; default: ease-vit.", rich_help_panel=NEW_MODEL),
]
NewAugment = Annotated[
    str | None,
    typer.Option(
        help="Augmentation: photos (default), or gentle (no mirroring, little cropping).",
        rich_help_panel=NEW_MODEL,
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        help="Weights file of the backbone: .safetensors or .npz. A model remembers it; see also EASE_WEIGHTS."
    ),
]
Budget = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Maximum number of passes through the backbone per photo; default: no limit."
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="auto|32-true|bf16-mixed",
        help="What the backbone computes in; auto (default): bf16 where the hardware has it, else fp32. "
        "See also EASE_PRECISION.",
    ),
]
Unreadable = Annotated[
    str, typer.Option(metavar="refuse|skip", help="Whether damaged images are an error or left out.")
]
Photos = Annotated[
    str | None,
    typer.Argument(
        metavar="FOLDER|TABLE|SHARDS",
        help="Photos in one folder per class; a table or a COCO file; a saved dataset, or hf:NAME; shards (.tar).",
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Table with paths and labels of the photos: .csv, .tsv, .jsonl, .parquet, or COCO .json.",
        rich_help_panel=DATA,
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder that relative paths in a table begin at; default: the folder of the table.",
        rich_help_panel=DATA,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="PATH,LABEL",
        help="Columns of paths and labels, where they are not recognised by their names.",
        rich_help_panel=DATA,
    ),
]
AllowUrls = Annotated[
    bool,
    typer.Option("--allow-urls", help="Fetch http and https addresses in tables.", rich_help_panel=DATA),
]
AllowPrivateUrls = Annotated[
    bool,
    typer.Option(
        "--allow-private-urls",
        help="Fetch addresses of private networks and of this machine, too.",
        rich_help_panel=DATA,
    ),
]
Methods = Annotated[str | None, typer.Option(help="Run only these methods.", metavar="A,B,...")]
Seeds = Annotated[str | None, typer.Option(help="Random seeds.", metavar="N,N,...")]
Jobs = Annotated[
    int, typer.Option(min=1, metavar="N", help="Number of runs at a time; they share the cores.")
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Use the nodes of the Ray cluster at this address; without one, start Ray on this machine.",
        rich_help_panel=HARDWARE,
    ),
]


RefuseOrSkip = Literal["refuse", "skip"]


def with_address(words: list[str]) -> list[str]:
    """The words of a command, in which --ray may stand without an address."""
    found = []
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else ""
        found.append(f"--ray={HERE}" if word == "--ray" and not looks_like_address(following) else word)
    return found


def executor_of(ray: str | None, jobs: int) -> Executor:
    """The value of --ray and --jobs."""
    from ease.experiments.executors.local import LocalProcesses

    if ray is None:
        return LocalProcesses(jobs)
    if jobs > 1:
        raise EaseError(
            "--jobs and --ray exclude each other: a cluster runs as many cells as it has cores for"
        )
    from ease.cluster import import_ray
    from ease.experiments.executors.ray import RayCluster

    import_ray()  # whether it is installed is found before the work is planned
    return RayCluster(ray)


def refuse_or_skip(text: str) -> RefuseOrSkip:
    """The value of --unreadable."""
    if text == "refuse":
        return "refuse"
    if text == "skip":
        return "skip"
    raise unknown("choice for --unreadable", text, ("refuse", "skip"))


def asked_precision(text: str | None) -> AskedPrecision | None:
    """The value of --precision."""
    from ease.training.hardware import AskedPrecision

    if text is not None and text not in get_args(AskedPrecision):
        raise unknown("precision", text, get_args(AskedPrecision))
    return cast("AskedPrecision | None", text)


def allowed_urls(public: bool, private: bool) -> bool | Literal["private"]:
    """The value of --allow-urls and --allow-private-urls."""
    return "private" if private else public


def sets_beside(sets: list[str] | None, given: Mapping[str, object]) -> list[str]:
    """The values of --set; one that contradicts an option is refused.

    Args:
        sets: `key=value` texts.
        given: The options of the command by the names of their settings; None means not given.
    """
    for text in sets or []:
        key = text.partition("=")[0].strip().replace("-", "_")
        if given.get(key) is not None:
            option = key.replace("_", "-")
            raise EaseError(f"{key} is given twice, by --{option} and by --set: leave one of them out")
    return sets or []


def path_text(path: Path | None) -> str | None:
    """A path as text, for a configuration."""
    return None if path is None else str(path)


def names(text: str | None) -> list[str]:
    """The names in a list that is separated by commas; none if the option was not given."""
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise EaseError(f"the list '{text}' names nothing: separate names by commas, or leave the option out")
    return parts


def seed_numbers(text: str | None) -> list[int]:
    """The value of --seeds."""
    from ease.documents import whole_number

    seeds = []
    for part in names(text):
        seed = whole_number(part)
        if seed is None:
            raise EaseError(f"'{part}' is not a seed: give whole numbers, such as --seeds 1993,1994")
        seeds.append(seed)
    return seeds


def shard_numbers(text: str) -> tuple[int, int]:
    """The value of --shard."""
    from ease.documents import whole_number

    number, count = map(whole_number, text.partition("/")[::2])
    if number is None or count is None or not 1 <= number <= count:
        raise EaseError(f"'--shard {text}' is not I/N with I from 1 to N: write for example --shard 1/4")
    return number, count
