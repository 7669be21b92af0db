"""Schemas of the routes of the inbox."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ease.app.prediction import ClassConfidence


class PhotoState(BaseModel):
    """A photo in the inbox."""

    id: str
    date: str = Field(description="when it came, in UTC")
    state: Literal["corrected", "unsure", "named"] = Field(
        description="corrected: a person named it, the answer was wrong; unsure: collected; named: unsure, then named"
    )
    name: str | None = Field(description="what a person said that it shows")
    known: bool = Field(description="whether the model knows a class of that name")
    file: str = Field(description="name of the file that was sent")
    image: str = Field(description="address of the photo")
    suggestions: list[ClassConfidence] = Field(description="what the model said, the best class first")
    unknown: float | None = Field(description="the model's unknown score")
    group: int | None = Field(description="the group of photos that look alike, see `groups`")


class Group(BaseModel):
    """Unknown photos that look alike: perhaps a new class."""

    id: int
    photos: list[str] = Field(description="ids of its photos")


class Outcomes(BaseModel):
    """How the answers that people judged turned out, since the model last learned."""

    right: int
    wrong: int
    since: str | None = Field(description="when the first of them was judged, in UTC")


class InboxState(BaseModel):
    """The inbox: photos that wait for a person, or for learning."""

    on: bool
    most_images: int
    most_bytes: int
    bytes: int
    per_day: int = Field(description="unsure photos that are collected at most on a UTC day")
    today: int = Field(description="unsure photos that were collected on this UTC day")
    photos: list[PhotoState]
    groups: list[Group]
    outcomes: Outcomes


class Feedback(BaseModel):
    """What became of a photo that a person named."""

    id: str | None = Field(
        description="its id in the inbox; null if the answer was right, and it is not kept"
    )
    name: str
    known: bool = Field(description="whether the model knows a class of this name")
    confirmed: bool = Field(description="whether the model's answer was this name already")
    similar: list[str] = Field(description="known names that are a letter or two away from a new name")


class Naming(BaseModel):
    """A name for a photo in the inbox."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(max_length=400, description="what it shows; null takes a name back")
    confirm: bool = Field(False, description="accept a name that is very like another")


class Removed(BaseModel):
    """Photos that were removed."""

    removed: int
