"""The shapes of answers and of the few JSON bodies, which are also what /openapi.json and /docs tell."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

State = Literal["queued", "running", "done", "failed", "cancelled", "interrupted"]


class Failure(BaseModel):
    """Every answer that is not a success."""

    error: str = Field(description="one sentence: what is wrong and what to do")


class Health(BaseModel):
    """The process lives."""

    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    """The model answers."""

    generation: int
    classes: int = Field(description="how many it knows")


class KnownClass(BaseModel):
    """A class of the model."""

    id: int = Field(description="never used again, even if the class is forgotten")
    name: str
    task: int = Field(description="the act of learning it came with: an entry of `tasks`")
    count: int = Field(description="images it was learned from")


class LearnedTask(BaseModel):
    """One act of learning."""

    task: int
    date: str = Field(description="UTC")
    classes: list[str] = Field(description="new ones")
    extended: list[str] = Field(description="known before, shown more images")
    images: int = Field(description="learned from")
    held_out: int = Field(description="kept apart for measuring")
    accuracy: float | None = Field(description="percent of the held-out images, measured on that day")
    notes: list[str]


class Thumbnails(BaseModel):
    """One small picture per class, where they are kept."""

    on: bool
    images: dict[str, str] = Field(description="class id -> address")


class Classes(BaseModel):
    """What the model knows and how it came to know it."""

    generation: int
    method: str
    backbone: str
    tunable: bool = Field(description="whether /learn may take more time over its first images (tune=true)")
    passes_per_image: int
    bytes: int = Field(description="of the model on disk, without the backbone")
    calibrated: bool = Field(description="whether confidences were fitted on held-out images")
    classes: list[KnownClass]
    tasks: list[LearnedTask]
    thumbnails: Thumbnails


class Guess(BaseModel):
    """A class an image may show."""

    name: str
    confidence: float


class ImagePrediction(BaseModel):
    """What one image is taken for."""

    file: str
    unknown: float | None = Field(
        description="0: surely a known class, 1: surely none; null if not calibrated"
    )
    is_unknown: bool
    classes: list[Guess] = Field(description="the most likely first")


class Predictions(BaseModel):
    """What the images are taken for, in their order."""

    generation: int = Field(description="of the model that predicted all of them")
    calibrated: bool
    predictions: list[ImagePrediction]


class Accepted(BaseModel):
    """A job that was taken in."""

    job: str
    state: State


class JobState(BaseModel):
    """A job."""

    id: str
    state: State
    progress: float
    message: str
    created: str
    ended: str | None
    classes: list[str]
    generation: int | None = Field(description="that it made")
    learned: dict[str, Any] | None
    error: str | None


class JobList(BaseModel):
    """The newest first."""

    jobs: list[JobState]


class Renamed(BaseModel):
    """A class under its new name."""

    generation: int
    name: str


class Forgotten(BaseModel):
    """A class that is gone."""

    generation: int
    name: str
    moved: float = Field(description="largest change of another class's prototype, as 1 - cosine")


class Rename(BaseModel):
    """A new name for a class."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=400)


class Rollback(BaseModel):
    """A generation to go back to."""

    model_config = ConfigDict(extra="forbid")

    generation: StrictInt
