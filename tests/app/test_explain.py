"""Why an answer was given: covering the named patches lowers the score, on every way in, and nothing is changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ease import Classifier
from ease.app.explain import Explanation
from ease.app.explain_page import SIDE, Explained, overlay, write_explanations
from ease.app.server.refusals import RefusalError
from ease.errors import EaseError
from ease.streams.intake import as_image_set
from tests.app.conftest import LIGHT, Digits, refused, write_folder
from tests.app.serving import ROOM, images, png, sentence, serving, state_of


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, digits: Digits) -> Classifier:
    """A model of four digits on 4 x 4 patches, with a picture of the first two."""
    model = Classifier.create(tmp_path_factory.mktemp("explain") / "model", input_size=32, augment="gentle")
    model.learn(digits("0", "1", count=10), thumbnails=True)
    model.learn(digits("2", "3", count=10))
    return model


def covered(model: Classifier, image: np.ndarray, why: Explanation, order: np.ndarray) -> float:
    """The score of the explained class after covering these patches of the map with the mean colour."""
    pixels = model.pixels([image]).clone()
    height, width = (
        side // count for side, count in zip(pixels.shape[-2:], (why.rows, why.columns), strict=True)
    )
    mean = pixels.mean(dim=(2, 3), keepdim=True)
    for at in order:
        row, column = divmod(int(at), why.columns)
        pixels[..., row * height : (row + 1) * height, column * width : (column + 1) * width] = mean
    return float(model.predictor.logits(pixels)[0, model.classes.index(why.name)])


def test_covering_the_warm_patches_lowers_the_score_more_than_covering_the_cold_ones(
    taught: Classifier, digits: Digits
) -> None:
    warm, cold, start = [], [], []
    for own in digits("0", "1", "2", "3", count=3, skip=20).values():
        for image in own:
            why = taught.explain(image)
            order = np.argsort(-np.array(why.heat), axis=None)
            few = round(0.2 * len(order))
            start.append(why.score)
            warm.append(covered(taught, image, why, order[:few]))
            cold.append(covered(taught, image, why, order[-few:]))
    assert np.mean(warm) < np.mean(start) - 0.1
    assert np.mean(warm) < np.mean(cold) - 0.2


def test_the_map_has_the_grid_of_the_patches_and_values_up_to_one(taught: Classifier, digits: Digits) -> None:
    why = taught.explain(digits("0", count=1, skip=20)["0"][0], top_k=2)
    assert (why.rows, why.columns) == (4, 4)
    for heat in (why.heat, *(near.heat for near in why.nearest)):
        assert np.array(heat).shape == (4, 4)
        assert np.abs(heat).max() == pytest.approx(1)
    assert "covered" in why.method


def test_the_nearest_classes_are_those_of_the_prediction_with_their_differences(
    taught: Classifier, digits: Digits
) -> None:
    image = digits("3", count=1, skip=20)["3"][0]
    why, (logits,) = taught.explain(image), taught.logits([image])
    (found,) = taught.predict([image], top_k=4)
    assert why.prediction == found
    assert [why.name, *(near.name for near in why.nearest)] == list(found.names)
    for near in why.nearest:
        assert near.score == pytest.approx(float(logits[taught.classes.index(near.name)]), abs=1e-5)
        assert near.difference == pytest.approx(why.score - near.score)


def test_another_class_than_the_answer_can_be_explained(taught: Classifier, digits: Digits) -> None:
    image = digits("0", count=1, skip=20)["0"][0]
    why = taught.explain(image, name="2")
    assert why.name == "2"
    assert why.nearest[0].name == why.prediction.name == "0"
    assert why.nearest[0].difference < 0
    # What speaks for 2 rather than 0 is the opposite of what speaks for 0 rather than 2.
    other = next(near for near in taught.explain(image).nearest if near.name == "2")
    assert np.allclose(np.array(why.nearest[0].heat), -np.array(other.heat), atol=1e-4)


def test_the_same_image_is_explained_alike_and_nothing_is_changed(taught: Classifier, digits: Digits) -> None:
    image, before = digits("1", count=1, skip=20)["1"][0], state_of(taught.path)
    assert taught.explain(image) == taught.explain(image)
    assert state_of(taught.path) == before


def test_it_is_said_whether_a_picture_of_the_class_was_kept(taught: Classifier, digits: Digits) -> None:
    image = digits("0", count=1, skip=20)["0"][0]
    assert taught.explain(image, name="0").class_picture
    assert not taught.explain(image, name="3").class_picture


def test_every_method_can_be_explained(grown_ease: Classifier, digits: Digits) -> None:
    why = grown_ease.explain(digits("5", count=1, skip=20)["5"][0])
    assert (why.rows, why.columns, len(why.nearest)) == (2, 2, 3)


def test_a_single_class_has_no_rival(tmp_path: Path, digits: Digits) -> None:
    model = Classifier.create(tmp_path / "model", input_size=16, settings=LIGHT)
    with pytest.raises(EaseError, match="knows no class yet"):
        model.explain(digits("0")["0"][0])
    model.learn(digits("0", count=4))
    image = digits("0", count=1, skip=20)["0"][0]
    why = model.explain(image)
    assert why.nearest == ()
    assert overlay(Explained("0.png", as_image_set([image]).image(0), why))[:2] == b"\xff\xd8"


def test_a_large_grid_is_divided_into_few_cells_of_whole_patches(tmp_path: Path, digits: Digits) -> None:
    model = Classifier.create(tmp_path / "model", input_size=80, settings=LIGHT)  # 10 x 10 patches
    model.learn(digits("0", "1", count=4))
    why = model.explain(digits("0", count=1, skip=20)["0"][0], top_k=0)
    assert (why.rows, why.columns) == (5, 5)


def test_wrong_requests_are_one_line(taught: Classifier, digits: Digits) -> None:
    image = digits("0", count=1)["0"][0]
    with pytest.raises(EaseError, match="unknown class '7'"):
        taught.explain(image, name="7")
    with pytest.raises(EaseError, match="top_k"):
        taught.explain(image, top_k=-1)


# --- files ----------------------------------------------------------------------------------------


def test_warm_patches_are_orange_and_cold_ones_blue(taught: Classifier) -> None:
    photo = torch.full((3, 64, 64), 128, dtype=torch.uint8)
    why = taught.explain(photo, top_k=0).model_copy(
        update={"heat": ((1.0, 0.0), (0.0, -1.0)), "rows": 2, "columns": 2}
    )
    import io

    picture = np.asarray(Image.open(io.BytesIO(overlay(Explained("x", photo, why)))).convert("RGB")).astype(
        int
    )
    heated = picture[-SIDE:, -SIDE:]
    warm, cold = heated[SIDE // 8, SIDE // 8], heated[-SIDE // 8, -SIDE // 8]
    assert warm[0] > warm[2] + 80
    assert cold[2] > cold[0] + 80


def test_the_page_shows_each_photo_and_escapes_names(tmp_path: Path, digits: Digits) -> None:
    model = Classifier.create(tmp_path / "model", input_size=16, settings=LIGHT)
    model.learn({"<b>nought": digits("0", count=4)["0"], "one" * 30: digits("1", count=4)["1"]})
    image = digits("0", count=1, skip=20)["0"][0]
    one = Explained("<i>a/b.png", as_image_set([image]).image(0), model.explain(image))
    page, document, picture, *_ = write_explanations([one, one], tmp_path / "out")
    text = page.read_text()
    assert "<b>nought" not in text
    assert "<i>a" not in text
    assert text.count("<article>") == text.count("data:image/jpeg") == 2
    assert len(json.loads(document.read_text())["explanations"]) == 2
    assert picture.parent == tmp_path / "out"


def test_predict_explains_on_the_command_line(
    ease: Any, taught: Classifier, digits: Digits, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "photos", digits("0", "1", count=1, skip=20))
    told = ease("predict", folder, "--model", taught.path, "--explain", tmp_path / "why", "--json")
    assert told.code == 0, told.err
    assert len(json.loads(told.out)["predictions"]) == 2
    assert (tmp_path / "why" / "explanations.html").exists()
    assert len(list((tmp_path / "why").glob("*.jpg"))) == 2
    (tmp_path / "file").write_text("")
    refused(ease("predict", folder, "--model", taught.path, "--explain", tmp_path / "file"))


# --- the server -----------------------------------------------------------------------------------


def test_the_server_explains_as_python_does(taught: Classifier, digits: Digits) -> None:
    image, before = digits("2", count=1, skip=20)["2"][0], state_of(taught.path)
    with serving(taught.path) as world:
        answer = world.client.post("/explain", files=images(image), data={"name": "1"})
        assert answer.status_code == 200, answer.text
        found = answer.json()
        expected = taught.explain(image, name="1")
        assert found.pop("generation") == taught.generation
        assert np.allclose(found["heat"], expected.heat, atol=1e-4)
        assert [near["name"] for near in found["nearest"]] == [near.name for near in expected.nearest]
        assert found["class_picture"] is True
        assert world.client.post("/explain", files=images(image)).json()["name"] == expected.prediction.name
        assert world.litter() == []
    assert state_of(taught.path) == before


def test_the_server_refuses_what_it_cannot_explain(taught: Classifier, digits: Digits) -> None:
    image = digits("2", count=1)["2"][0]
    with serving(taught.path) as world:
        post = world.client.post
        assert "no class 'x'" in sentence(post("/explain", files=images(image), data={"name": "x"}), 422)
        assert "more than 1" in sentence(post("/explain", files=images(image, image)), 413)
        assert "cannot be read" in sentence(post("/explain", files=[("image", ("a.png", b"no"))]), 422)
        assert "'image'" in sentence(post("/explain", files=[("name", (None, "2"))]), 422)
        assert world.litter() == []


def test_explaining_is_bounded_in_seconds_and_size_and_takes_a_slot(
    taught: Classifier, digits: Digits
) -> None:
    image = digits("2", count=1)["2"][0]
    with serving(taught.path, limits=ROOM.model_copy(update={"answer_seconds": 1e-6})) as world:
        assert "took longer" in sentence(world.client.post("/explain", files=images(image)), 503)
        assert world.service.model.waiting == 0
    with serving(taught.path, limits=ROOM.model_copy(update={"predict_bytes": 100})) as world:
        sentence(world.client.post("/explain", files=images(image)), 413)
    with serving(taught.path, limits=ROOM.model_copy(update={"waiting": 1})) as world:
        with world.service.model.admitted(1):
            sentence(world.client.post("/explain", files=images(image)), 503)
        assert world.client.post("/explain", files=images(image)).status_code == 200


def test_reading_routes_need_no_token_but_foreign_pages_are_refused(
    taught: Classifier, digits: Digits
) -> None:
    image = digits("2", count=1)["2"][0]
    with serving(taught.path, token="correct-horse-battery") as world:
        assert world.client.post("/explain", files=images(image)).status_code == 200
    with serving(taught.path) as world:
        foreign = world.client.post(
            "/explain", files=images(image), headers={"Origin": "http://evil.example"}
        )
        sentence(foreign, 403)


def test_predictions_are_answered_between_the_batches_of_longer_work(
    taught: Classifier, digits: Digits
) -> None:
    """Work that never ends by itself: the prediction is answered while it goes on."""
    import threading

    image = digits("2", count=1)["2"][0]
    with serving(taught.path) as world:
        stop, pieces = threading.Event(), []

        def work() -> None:
            while not stop.is_set():
                world.service.model.between(lambda: pieces.append(1))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            answer = world.client.post("/predict", files=[("image", ("a.png", png(image)))])
            assert answer.status_code == 200
        finally:
            stop.set()
            thread.join()
        assert pieces


def test_work_for_a_server_that_has_stopped_is_refused(taught: Classifier) -> None:
    with serving(taught.path) as world:
        model = world.service.model
    with pytest.raises(RefusalError, match="server is stopping"):
        model.between(lambda: None)
    error = RuntimeError("of the work")

    def fail() -> None:
        raise error

    with serving(taught.path) as world, pytest.raises(RuntimeError, match="of the work"):
        world.service.model.between(fail)
