"""The names that `ease` exports: lazy, documented, and with examples that run."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import ease
from ease import Predictor, create_method, list_methods, load_backbone, load_stream, run
from ease.config import resolve
from ease.errors import EaseError

NAMES = [name for name in ease.__all__ if name != "__version__"]
TINY = {"dataset": "digits", "protocol": "B0 Inc5", "limit_per_class": 4, "input_size": 16}


def test_importing_the_package_or_the_command_imports_no_torch() -> None:
    code = "import sys, ease, ease.cli; sys.exit(any(name in sys.modules for name in ('torch', 'timm', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_name_is_loaded_when_it_is_asked_for_and_no_other_is_known() -> None:
    assert set(NAMES) <= set(dir(ease))
    for name in NAMES:
        assert getattr(ease, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Clasifier'"):
        _ = ease.Clasifier  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_documented_with_an_example_that_runs(name: str) -> None:
    value = getattr(ease, name)
    text = inspect.getdoc(value) or ""
    assert "Example:" in text
    if inspect.isfunction(value):
        assert "Returns:" in text
        arguments = text.partition("Args:")[2].partition("Returns:")[0]
        assert all(f"{parameter}:" in arguments for parameter in inspect.signature(value).parameters)
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert example.examples
    said: list[str] = []
    assert doctest.DocTestRunner().run(example, out=said.append).failed == 0, "".join(said)


def test_a_run_takes_options_a_mapping_a_file_or_a_configuration(tmp_path: Path) -> None:
    lines = "\n".join(f"{key}: {value}" for key, value in {**TINY, "method": "simplecil"}.items())
    (tmp_path / "run.yaml").write_text(lines)
    config, _ = resolve({**TINY, "method": "simplecil"})
    records = [
        run(out=tmp_path / "a", method="simplecil", **TINY),
        run(TINY, out=tmp_path / "b", method="simplecil"),
        run(tmp_path / "run.yaml", out=tmp_path / "c"),
        run(config, out=tmp_path / "d"),
    ]
    assert len({str(record.accuracy) for record in records}) == 1
    assert all((tmp_path / name / "record.json").exists() for name in "abcd")
    with pytest.raises(EaseError, match="not both"):
        run(config, out=tmp_path / "e", method="ease")
    with pytest.raises(EaseError, match="did you mean 'dataset'"):
        run(out=tmp_path / "e", datasat="digits")
    assert not (tmp_path / "e").exists()


def test_a_method_has_its_own_settings_only() -> None:
    backbone = load_backbone(input_size=16)
    assert create_method("strata", backbone, layers=2).settings.layers == 2
    with pytest.raises(EaseError, match="did you mean 'layers'"):
        create_method("strata", backbone, layer=2)
    with pytest.raises(EaseError, match="layers"):
        create_method("strata", backbone, layers=0)
    with pytest.raises(EaseError, match="did you mean 'strata'"):
        create_method("starta", backbone)


def test_a_method_scores_what_a_run_of_it_scores(tmp_path: Path) -> None:
    record = run(out=tmp_path / "run", method="simplecil", **TINY)
    stream = load_stream("digits", "B0 Inc5", limit_per_class=4)
    learner = create_method("simplecil", load_backbone(input_size=16), augmentation=stream.augmentation)
    for task, expected in zip(stream.tasks, record.accuracy, strict=True):
        learner.learn(task)
        seen = stream.tasks[: task.index + 1]
        logits = Predictor(learner).logits([one.test for one in seen])
        labels = [label for one in seen for label in one.test.labels.tolist()]
        right = sum(a == b for a, b in zip(logits.argmax(dim=1).tolist(), labels, strict=True))
        assert 100 * right / len(labels) == pytest.approx(expected)


def test_kinds_of_methods_together_are_all_methods() -> None:
    kinds = [list_methods(kind) for kind in ("exemplar-free", "exemplar-based", "ceiling")]
    assert sorted(name for some in kinds for name in some) == list_methods()
