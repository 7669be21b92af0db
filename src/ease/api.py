"""Functions of the public API: run an experiment, load a stream, create a method, list names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ease.backbone import Backbone
from ease.backbone.zoo import EMBEDDED, load_backbone
from ease.config import RunConfig, resolve, validated
from ease.errors import EaseError, unknown
from ease.experiments.record import RunRecord
from ease.experiments.run import start_run
from ease.methods import Kind, Learner, find_method, methods
from ease.progress import Progress
from ease.streams import Augmentation, Stream, Transforms, dataset_list, load_dataset, make_stream
from ease.streams.protocol import SEED
from ease.training.engine import Engine


def run(
    config: RunConfig | Mapping[str, Any] | Path | str | None = None,
    *,
    out: Path | str,
    preset: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> RunRecord:
    """Run a method on a stream of classes; the same as `ease run`.

    Args:
        config: A configuration, a mapping of options, or a YAML file of options. Without it, the defaults.
        out: New or empty folder for the record, the report, the predictions and the model.
        preset: Named settings, see `ease list presets`.
        progress: Where to show progress.
        options: Fields of `RunConfig` and settings of the method. They override those in `config`.

    Returns:
        The record of the run, which is also written to `out/record.json`.

    Example:
        >>> import tempfile
        >>> from ease import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     record = run(
        ...         out=f"{folder}/run", dataset="digits", protocol="B0 Inc5", method="simplecil",
        ...         limit_per_class=4, input_size=16,
        ...     )
        >>> record.task_sizes, len(record.accuracy)
        ([5, 5], 2)
    """
    if isinstance(config, RunConfig):
        if options or preset is not None:
            raise EaseError("a RunConfig is complete: give either a RunConfig or options, not both")
        return start_run(config, Path(out), [], progress)
    given: dict[str, Any] = {**config, **options} if isinstance(config, Mapping) else options
    file = None if config is None or isinstance(config, Mapping) else Path(config)
    given = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    resolved, notes = resolve(given, preset=preset, file=file)
    return start_run(resolved, Path(out), notes, progress)


def load_stream(
    dataset: str,
    protocol: str,
    *,
    data_root: Path | str | None = None,
    seed: int = SEED,
    class_order: Sequence[int] | None = None,
    limit_per_class: int | None = None,
    unreadable: Literal["refuse", "skip"] = "refuse",
    download: bool = False,
) -> Stream:
    """Load a dataset and split its classes into tasks.

    Args:
        dataset: Name of the dataset, one of `list_datasets()`.
        protocol: `B<m> Inc<n>`: m classes in the first task (B0: n classes), then n in each further task.
        data_root: Folder of the dataset; `$EASE_DATA/<dataset>` if None. Built-in datasets need none.
        seed: Random seed of the class order.
        class_order: The class at each position, in place of a random order.
        limit_per_class: Use at most this many training and as many test images of each class.
        unreadable: Whether damaged images are an error (`refuse`) or left out (`skip`).
        download: Allow downloading the dataset where that is possible.

    Returns:
        The stream. Each of its `tasks` has `classes`, `names`, and the image sets `train` and `test`.

    Example:
        >>> from ease import load_stream
        >>> stream = load_stream("digits", "B4 Inc3", limit_per_class=4)
        >>> [task.names for task in stream.tasks]
        [('4', '2', '7', '6'), ('0', '3', '5'), ('8', '9', '1')]
        >>> len(stream.tasks[0].train), stream.tasks[0].train.image(0).shape
        (16, torch.Size([3, 8, 8]))
    """
    root = None if data_root is None else Path(data_root)
    data = load_dataset(dataset, root, limit_per_class, unreadable, download=download)
    return make_stream(data, protocol, seed, None if class_order is None else tuple(class_order))


def create_method(
    name: str,
    backbone: Backbone | str = EMBEDDED,
    *,
    seed: int = SEED,
    augmentation: Augmentation | None = None,
    **settings: Any,
) -> Learner:
    """Create a method that has learned nothing yet.

    Call `learn(task)` with one task after the other (exemplar-based methods need a `Memory` as well), and score images
    with `Predictor(learner).logits(images)`.

    Args:
        name: Name of the method, one of `list_methods()`.
        backbone: A backbone, or the name of one.
        seed: Random seed.
        augmentation: Augmentation of training images, such as `stream.augmentation`; that of photos if None.
        settings: Settings of the method; see its page in the documentation.

    Returns:
        The learner.

    Example:
        >>> from ease import Predictor, create_method, load_backbone, load_stream
        >>> stream = load_stream("digits", "B0 Inc5", limit_per_class=8)
        >>> backbone = load_backbone(input_size=16)
        >>> learner = create_method("ease", backbone, augmentation=stream.augmentation, epochs=1, rank=4)
        >>> for task in stream.tasks:
        ...     learner.learn(task)
        ...     print(Predictor(learner).logits(task.test).shape)
        torch.Size([40, 5])
        torch.Size([40, 10])
    """
    method = find_method(name)
    for key in settings:
        if key not in method.Settings.model_fields:
            raise unknown(f"setting of method '{method.name}'", key, method.Settings.model_fields)
    chosen = validated(method.Settings, settings, f"settings of '{method.name}'")
    frozen = load_backbone(backbone) if isinstance(backbone, str) else backbone
    engine = Engine(frozen, Transforms(frozen.pixels, augmentation or Augmentation()), seed=seed)
    return method(engine, chosen)


def list_methods(kind: Kind | None = None) -> list[str]:
    """Names of all methods, including those of other installed packages.

    Args:
        kind: Only methods of this kind: `exemplar-free`, `exemplar-based` or `ceiling`.

    Returns:
        The names in alphabetical order.

    Example:
        >>> from ease import list_methods
        >>> "strata" in list_methods("exemplar-free"), "strata" in list_methods("exemplar-based")
        (True, False)
    """
    return [name for name, method in methods().items() if kind is None or method.kind == kind]


def list_datasets() -> list[str]:
    """Names of all datasets.

    Returns:
        The names in alphabetical order.

    Example:
        >>> from ease import list_datasets
        >>> "cifar100" in list_datasets()
        True
    """
    return list(dataset_list())
