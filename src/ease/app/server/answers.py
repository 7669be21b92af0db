"""Schemas of answers and of the few JSON bodies; /openapi.json and /docs are made from them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from ease.app.explain import Explanation

State = Literal["queued", "running", "done", "failed", "cancelled", "interrupted"]


class Failure(BaseModel):
    """An answer to a request that failed."""

    error: str = Field(description="one sentence that says what is wrong and what to do")


class Health(BaseModel):
    """The process is running."""

    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    """The model is loaded."""

    generation: int
    classes: int = Field(description="number of classes it knows")


class KnownClass(BaseModel):
    """A class of the model."""

    id: int = Field(description="never used for another class, even after this one is forgotten")
    name: str
    task: int = Field(description="number of the task it was learned with, see `tasks`")
    count: int = Field(description="number of images it was learned from")


class LearnedTask(BaseModel):
    """Classes that were learned together."""

    task: int
    date: str = Field(description="date and time in UTC")
    classes: list[str] = Field(description="new classes")
    extended: list[str] = Field(description="classes known before that were given more images")
    images: int = Field(description="number of images learned from")
    held_out: int = Field(description="number of images held out for measuring the accuracy")
    accuracy: float | None = Field(
        description="percentage of the held-out images recognised, as measured at that time"
    )
    notes: list[str]


class Thumbnails(BaseModel):
    """Small pictures of the classes, if they are kept."""

    on: bool
    images: dict[str, str] = Field(description="class id -> address of the picture")


class InboxSummary(BaseModel):
    """Photos that are kept until they are learned, or discarded."""

    on: bool = Field(description="whether the server keeps photos whose answers are corrected")
    photos: int
    bytes: int


class Classes(BaseModel):
    """The classes of the model and how they were learned."""

    generation: int
    method: str
    backbone: str
    tunable: bool = Field(description="whether /learn can adapt the backbone to the first images (tune=true)")
    passes_per_image: int
    bytes: int = Field(description="size of the model on disk, without the backbone")
    calibrated: bool = Field(description="whether confidences were fitted on held-out images")
    classes: list[KnownClass]
    tasks: list[LearnedTask]
    thumbnails: Thumbnails
    inbox: InboxSummary


class Accepted(BaseModel):
    """A job that was accepted."""

    job: str
    state: State


class JobState(BaseModel):
    """A learning job."""

    id: str
    state: State
    progress: float
    message: str
    created: str
    ended: str | None
    classes: list[str]
    generation: int | None = Field(description="generation of the model that it wrote")
    learned: dict[str, Any] | None
    error: str | None


class JobList(BaseModel):
    """All jobs, the newest first."""

    jobs: list[JobState]


class Renamed(BaseModel):
    """A class under its new name."""

    generation: int
    name: str


class Rename(BaseModel):
    """A new name for a class."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=400)


class Rollback(BaseModel):
    """A generation to go back to."""

    model_config = ConfigDict(extra="forbid")

    generation: StrictInt


class ExplainedAnswer(Explanation):
    """Why the model gave an answer."""

    generation: int = Field(description="of the model that was explained")
