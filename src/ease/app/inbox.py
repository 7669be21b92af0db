"""The review inbox of a model: photos that people have named, and photos that the model was unsure of.

It is the folder `MODEL.inbox` beside the model directory, and exists only if somebody asked for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ease.app.inbox_folder import InboxFolder, NoPhotoError
from ease.app.inbox_photos import (
    Correction,
    Facts,
    InboxPhoto,
    Known,
    class_of,
    is_learned,
    new_facts,
    renamed,
    rightly_unknown,
)
from ease.app.names import LikeNameError, alike_name, similar_names
from ease.app.outcomes import Counts, Outcome, read_counts, today, write_counts
from ease.app.prediction import ClassConfidence, Prediction
from ease.errors import EaseError
from ease.filesystem import read_bytes
from ease.streams.intake.names import class_name


class Inbox(InboxFolder):
    """The inbox of a model, see `InboxFolder` for its arguments. `Classifier.inbox` is the one of a classifier."""

    # --- reading ----------------------------------------------------------------------------------

    def photos(self, known: Known | None = None) -> list[InboxPhoto]:
        """The photos, the oldest first. One that was learned already, by a process that was killed, is left out.

        Args:
            known: What the model knows; its current generation if left out.
        """
        if not self._facts():
            return []
        known = known or self.known()
        return [self._shown(facts, known) for facts in self._facts(known) if not is_learned(facts, known)]

    def photo(self, photo_id: str, known: Known | None = None) -> InboxPhoto:
        """The photo with this id."""
        for photo in self.photos(known):
            if photo.id == photo_id:
                return photo
        raise NoPhotoError(f"there is no photo {photo_id[:60]!a} in the inbox: list them with 'ease inbox'")

    def image(self, photo_id: str) -> bytes:
        """The bytes of a photo, as they came."""
        return read_bytes(self.photo(photo_id).path, self.most_bytes)

    def named(self, known: Known) -> dict[str, int]:
        """Photos that a person named and that are not learned yet: content hash -> id of a known class."""
        pairs = ((facts.digest, class_of(facts, known)[0]) for facts in self._facts(known))
        return {digest: number for digest, number in pairs if number is not None}

    def outcomes(self, since_generation: int = 0) -> Outcome:
        """How the answers that people judged turned out. Only counts are kept.

        Args:
            since_generation: Only answers of this generation and later ones; all if 0.
        """
        return read_counts(self.path).outcome(since_generation)

    def collected_today(self) -> int:
        """Number of unsure photos that were collected on this UTC day."""
        return read_counts(self.path).collected_on(today())

    # --- adding -----------------------------------------------------------------------------------

    def check_name(self, name: str, known: Known, *, confirm: bool = False) -> str:
        """The name in the form in which it is stored; refuses one that is too like another, unless confirmed."""
        stored = class_name(name)
        names = [*known.classes.values(), *(p.name for p in self.photos(known) if p.name is not None)]
        if stored not in names and not confirm and (like := alike_name(stored, names)) is not None:
            raise LikeNameError(
                f"'{stored}' is very like '{like}': use that name, or confirm the new one (confirm=true, --yes)"
            )
        return stored

    def judge(
        self,
        content: bytes,
        digest: str,
        name: str,
        answer: Prediction | None,
        known: Known,
        *,
        confirm: bool = False,
        file: str = "",
    ) -> Correction:
        """A person says what a photo shows: keep it with that name, or count the answer as right if it was that.

        Args:
            content: The bytes of the photo, which must be readable.
            digest: Its content hash.
            name: What it shows.
            answer: What the model said; None if it knows no class yet.
            known: The generation that gave the answer.
            confirm: Accept a name that is very like another.
            file: The name of the photo's file.
        """
        name = self.check_name(name, known, confirm=confirm)
        class_id = known.id_of(name)
        right = answer is not None and answer.name == name and not answer.is_unknown
        counts = answer is not None and not answer.corrected  # a looked up answer is a person's
        similar = () if class_id is not None else similar_names(name, known.classes.values())
        with self._writing(make=True):
            old = next((facts for facts in self._facts(known) if facts.digest == digest), None)
            if right and (old is None or old.state != "unsure"):
                if counts and old is None:
                    self._count(known.generation, True)
                if old is not None:
                    self._write(renamed(old, name, known))
                return Correction(None if old is None else old.id, name, True, confirmed=True)
            if old is not None:
                judged = counts and old.state == "unsure"
                if judged:
                    self._count(known.generation, right)
                facts = renamed(old, name, known)
                self._write(facts.model_copy(update={"judged": old.judged or (judged and not right)}))
                return Correction(old.id, name, class_id is not None, confirmed=right, similar=similar)
            self._make_room(len(content))
            wrong = counts and not rightly_unknown(answer, class_id)
            facts = new_facts(content, digest, "corrected", answer, known, file)
            facts = facts.model_copy(update={"name": name, "class_id": class_id, "judged": wrong})
            self._add(facts, content)
            if counts:
                try:
                    self._count(known.generation, not wrong)
                except BaseException:  # what is refused must not be in force
                    self._remove(facts.id)
                    raise
        return Correction(facts.id, name, class_id is not None, similar=similar)

    def collect(
        self, content: bytes, digest: str, answer: Prediction, known: Known, *, per_day: int, file: str = ""
    ) -> str | None:
        """Keep a photo that the model was unsure of, for a person to look at.

        Args:
            content: The bytes of the photo.
            digest: Its content hash.
            answer: What the model said.
            known: The generation that gave the answer.
            per_day: Photos that are collected at most on a UTC day.
            file: The name of the photo's file.

        Returns:
            Its id; None if it is not kept, because enough were collected today, the inbox is full, or the photo is
            in it or was discarded before.
        """
        if self.collected_today() >= per_day:
            return None
        with self._writing():
            counts, found = read_counts(self.path), self._facts()
            full = len(found) >= self.most_images
            full = full or sum(facts.size for facts in found) + len(content) > self.most_bytes
            seen = digest in counts.dropped or any(facts.digest == digest for facts in found)
            if counts.collected_on(today()) >= per_day or full or seen:
                return None
            # Counted first: a writer that is killed in between must not collect more than was allowed.
            write_counts(self.path, counts.with_collected(today()))
            facts = new_facts(content, digest, "unsure", answer, known, file)
            self._add(facts, content)
            return facts.id

    # --- changing ---------------------------------------------------------------------------------

    def rename(self, photo_id: str, name: str | None, *, confirm: bool = False) -> InboxPhoto:
        """Name a photo, change its name, or take its name back (None); it is then unsure.

        Args:
            photo_id: Id of the photo.
            name: What it shows.
            confirm: Accept a name that is very like another.
        """
        known = self.known()
        stored = None if name is None else self.check_name(name, known, confirm=confirm)
        with self._writing():
            facts = self._one(photo_id, known)
            if facts.name is not None and stored is None and facts.judged:
                self._count(facts.generation, False, -1)
            facts = renamed(facts, stored, known)
            self._write(facts)
        return self._shown(facts, known)

    def discard(self, photo_id: str) -> None:
        """Remove a photo. It is not collected again."""
        with self._writing():
            self._drop([self._one(photo_id)])

    def clear(self) -> int:
        """Remove all photos; returns how many there were."""
        if not self.on:
            return 0
        with self._writing():
            found = self._facts()
            self._drop(found)
        return len(found)

    def undo(self) -> InboxPhoto:
        """Take back what a person last said: the photo of a correction goes, one that was unsure loses its name."""
        known = self.known()
        with self._writing():
            named = [f for f in self._facts(known) if f.name is not None and not is_learned(f, known)]
            if not named:
                raise EaseError(
                    "there is no correction to take back: learned ones are undone with 'ease rollback'"
                )
            last = max(named, key=lambda facts: (facts.changed, facts.id))
            shown = self._shown(last, known)
            if last.judged:
                self._count(last.generation, False, -1)
            if last.state == "corrected":
                self._remove(last.id)
            else:
                self._write(renamed(last, None, known))
        return shown

    # --- following the model ----------------------------------------------------------------------

    def to_learn(self, known: Known, only: Collection[str] | None = None) -> list[InboxPhoto]:
        """The photos that people have named, the oldest first.

        Args:
            known: What the model knows.
            only: Ids of the photos to choose from; all if None.
        """
        return [p for p in self.photos(known) if p.name is not None and (only is None or p.id in only)]

    def settle(self, learned: Sequence[InboxPhoto] = ()) -> None:
        """Remove photos that the current generation has learned, and finish what a killed `forget` began.

        Args:
            learned: Photos that were just learned. One that a person has renamed meanwhile stays.
        """
        if not self.on:
            return
        known = self.known()
        names = {photo.id: photo.name for photo in learned}
        with self._writing():
            for facts in self._facts(known):
                just = facts.id in names and class_of(facts, known)[1] == names[facts.id]
                if just or is_learned(facts, known):
                    self._remove(facts.id)

    def follow(self, class_id: int, known: Known) -> None:
        """Note the id with photos that bear the name of this class, before it gets another name."""
        if self.on:
            with self._writing():
                for facts in self._facts(known):
                    if class_of(facts, known)[0] == class_id != facts.class_id:
                        self._write(facts.model_copy(update={"class_id": class_id, "model": known.model}))

    def _shown(self, facts: Facts, known: Known) -> InboxPhoto:
        class_id, name = class_of(facts, known)
        suggestions = tuple(
            ClassConfidence(name=known.classes[each.id], confidence=each.confidence)
            for each in facts.suggestions
            if each.id in known.classes
        )
        return InboxPhoto(
            facts.id,
            facts.date,
            facts.state,
            name,
            class_id,
            facts.file,
            suggestions,
            facts.unknown,
            facts.digest,
            facts.size,
            self._photo(facts.id),
        )

    def _count(self, generation: int, right: bool, change: int = 1) -> None:
        counts: Counts = read_counts(self.path).with_judged(generation, right, change)
        write_counts(self.path, counts)
