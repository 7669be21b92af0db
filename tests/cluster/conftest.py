"""A real Ray cluster of two nodes with one core each, which tests may rob of nodes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ease

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
SOURCE = str(Path(ease.__file__).parents[1])
MEMORY = 100 * 2**20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run here. A cluster needs the cores for itself, so it does not run beside other tests."""
    mine = [item for item in items if Path(__file__).parent in item.path.parents]
    if "PYTEST_XDIST_WORKER" in os.environ:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="needs the cores for itself: pytest tests/cluster"))
    elif os.environ.get("EASE_CLUSTER_TESTS") != "all":
        for item in mine:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="takes long: make cluster-test"))


class TwoNodes:
    """A cluster of a head and one further node, which can be lost and replaced."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "object_store_memory": MEMORY}
        self._cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        self._node: Any = None
        self.address = str(self._cluster.address)
        self.join()

    def join(self) -> str:
        """Make sure that there is a second node, and return the beginning of its id."""
        if self._node is None:
            self._node = self._cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
            self._cluster.wait_for_nodes()
        return str(self._node.node_id)[:6]

    def lose(self) -> None:
        """Kill the second node, without a warning."""
        node, self._node = self._node, None
        if node is not None:
            self._cluster.remove_node(node, allow_graceful=False)

    def stop(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def _cluster() -> Iterator[TwoNodes]:
    pytest.importorskip("ray")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([SOURCE, *filter(None, [before])])
    found = TwoNodes()
    yield found
    found.stop()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture
def cluster(_cluster: TwoNodes) -> Iterator[TwoNodes]:
    _cluster.join()
    yield _cluster
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
