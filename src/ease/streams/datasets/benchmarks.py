"""The benchmarks that were published as archives of train/CLASS and test/CLASS folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ease.errors import EaseError
from ease.filesystem import is_folder, shown
from ease.streams.datasets.dataset_info import DATASET_INFO, identify_variant
from ease.streams.datasets.folder import dataset_from_scan
from ease.streams.datasets.registry import DatasetLoader, DatasetRequest
from ease.streams.intake.names import numeric_order, readable_names
from ease.streams.intake.scan import FolderScan, Unreadable, scan_folder
from ease.streams.stream import Dataset


class Benchmark(DatasetLoader):
    """A published dataset of class folders, such as `imagenet-r`.

    Args:
        name: A name in `DATASET_INFO`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.about = f"{DATASET_INFO[name].summary}: class folders"

    def load(self, request: DatasetRequest) -> Dataset:
        """Read the images. Classes come in the order of their folders, under names that people can read."""
        scan = self._scan(request, request.unreadable)
        if scan.test is None:
            raise EaseError(f"'{scan.root}' has train/ but no test/: {self._expected()}")
        sizes = [[len(paths) for paths in part.values()] for part in (scan.train, scan.test)]
        variant, note = identify_variant(self.name, *sizes)
        if note is not None:
            scan.notes.append(note)
        keep_order = DATASET_INFO[self.name].keep_order
        found = dataset_from_scan(scan, variant, request.limit, keep_order=keep_order)
        return replace(found, class_names=readable_names(found.class_names))

    def content_to_check(self, request: DatasetRequest) -> FolderScan:
        """See `DatasetLoader`."""
        return self._scan(request, "skip", keep_empty=True)

    def _scan(
        self, request: DatasetRequest, unreadable: Unreadable, *, keep_empty: bool = False
    ) -> FolderScan:
        root = request.folder(self.name, self._expected())
        folder = self._locate(root)
        if folder is None:
            title = DATASET_INFO[self.name].title
            raise EaseError(f"{title} is not in '{shown(root)}': {self._expected()}")
        scan = self._scan_images(folder, unreadable, keep_empty)
        if DATASET_INFO[self.name].keep_order:  # the tasks follow the folders, so 10 must not come before 2
            scan.train = {c: scan.train[c] for c in numeric_order(list(scan.train))}
        return scan

    def _locate(self, root: Path) -> Path | None:
        """The folder of the images: the root, or what an archive was unpacked to there (`vtab-cil/vtab/`)."""
        info = DATASET_INFO[self.name]
        known = dict.fromkeys([self.name, *(a.partition(".")[0] for a in info.archives), *info.folders])
        inner = [root / k for k in known] + [root / k / other for k in known for other in known if k != other]
        for folder in [root, *(f for f in inner if is_folder(f))]:
            if self._has_images(folder):
                return folder
        return None

    def _has_images(self, folder: Path) -> bool:
        return is_folder(folder / "train")

    def _scan_images(self, folder: Path, unreadable: Unreadable, keep_empty: bool) -> FolderScan:
        return scan_folder(folder, unreadable, layout="split", keep_empty=keep_empty)

    def _expected(self) -> str:
        """What should be in the folder, for error messages."""
        info = DATASET_INFO[self.name]
        return (
            f"expected are train/CLASS and test/CLASS folders ({info.summary}){self._other_layout()}; "
            f"{' or '.join(info.archives)} was published in {info.source}"
        )

    def _other_layout(self) -> str:
        return ""
