"""A real Ray cluster of two nodes with one core each, which tests may rob of nodes.

It has a temporary folder and ports of its own, so that neither a cluster that runs on the machine nor what is left of
one matters, and a cluster of the user does not notice it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.tools import GRACE, LIMIT, PATIENCE, LimitReachedError, limited

MEMORY = 100 * 2**20
"""Bytes of shared memory of a node."""
ROOM = 4 * 2**30
"""Bytes of memory that a node says it has. Ray would take what is free at the moment, and tasks could wait for ever."""
FOLDER = "ease-ray-"
"""How the names of the temporary folders begin; the number of their process follows."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run here. A cluster needs the cores for itself, so it does not run beside other tests."""
    mine = [item for item in items if Path(__file__).parent in item.path.parents]
    if find_spec("ray") is None:
        for item in mine:
            if "cluster" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason="Ray is not installed: pip install 'ease-cil[ray]'"))
    if "PYTEST_XDIST_WORKER" in os.environ:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="needs the cores for itself: pytest tests/cluster"))
    elif os.environ.get("EASE_CLUSTER_TESTS") != "all":
        for item in mine:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="takes long: make cluster-test"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Limit every test with its fixtures. What hangs ends with the stacks of all threads, and so does the session."""
    capturing = item.config.pluginmanager.getplugin("capturemanager")
    with capturing.global_and_fixture_disabled():
        output = os.dup(2)
    try:
        with limited(item.nodeid, LIMIT, GRACE, output):
            return (yield)
    finally:
        os.close(output)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """After a test that hung, the next ones would wait for the same."""
    if call.excinfo is not None and call.excinfo.errisinstance(LimitReachedError):
        item.session.shouldstop = f"{item.nodeid} has not ended in time"
    return (yield)


class TwoNodes:
    """A cluster of a head and one further node, which can be lost and replaced."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._args = {"num_cpus": 1, "object_store_memory": MEMORY, "memory": ROOM}
        head = {**self._args, "include_dashboard": False, "dashboard_agent_listen_port": 0}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._node: Any = None
        self.address = str(self._cluster.address)

    def join(self) -> str:
        """Make sure that there is a second node, and return the beginning of its id. Call it in the main thread.

        The kernel ends the processes of a node together with the thread that started them, which is how they end when
        this process is killed.
        """
        if self._node is None:
            self._node = self._cluster.add_node(**self._args)
            self._cluster.wait_for_nodes(PATIENCE)
        return str(self._node.node_id)[:6]

    def lose(self) -> None:
        """Kill the second node, without a warning."""
        node, self._node = self._node, None
        if node is not None:
            with _with_all_it_started(node):
                self._cluster.remove_node(node, allow_graceful=False)

    @contextmanager
    def busy_head(self) -> Iterator[Callable[[], None]]:
        """Connect, and keep the core of the head busy, so that work begins on the second node.

        Otherwise the head may have done everything before the second node has started a process.

        Yields:
            A function that frees the core.
        """
        from ease.cluster import connected

        with connected(self.address) as ray:
            strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            place = strategy(str(self._cluster.head_node.node_id), soft=False)
            busy = ray.remote(_Busy).options(num_cpus=1, scheduling_strategy=place).remote()
            ray.get(busy.ready.remote(), timeout=PATIENCE)
            yield lambda: ray.kill(busy)

    def stop(self) -> None:
        for node in self._cluster.list_all_nodes():
            with _with_all_it_started(node):
                node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


@contextmanager
def _with_all_it_started(node: Any) -> Iterator[None]:
    """Kill what the processes of a node have started after them; some of it would live on for a minute."""
    found = {each.process.pid for kind in node.all_processes.values() for each in kind}
    own = set(found)
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(
                stat.read_text(errors="replace").rpartition(")")[2].split()[1]
            )
    while more := {process for process, parent in parents.items() if parent in found} - found:
        found |= more
    yield
    for process in found - own:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


class _Busy:
    """Keeps a core from others."""

    def ready(self) -> bool:
        return True


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _temporary_folder() -> Iterator[str]:
    """A folder with a short name, since names of sockets are short. Those of killed processes are removed."""
    root = Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())
    for old in root.glob(f"{FOLDER}*"):
        process = old.name.removeprefix(FOLDER).partition("-")[0]
        if process.isdigit() and not Path("/proc", process).exists() and Path("/proc/self").exists():
            shutil.rmtree(old, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=root)
    try:
        yield folder
    finally:
        for _ in range(10):  # processes of the cluster may be writing their last lines
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.exists(folder):
                break
            time.sleep(0.5)


@pytest.fixture(scope="session")
def _cluster() -> Iterator[TwoNodes]:
    import ease

    path = os.pathsep.join(
        [str(Path(ease.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Ray's default is 15: beside anything else that computes, the tests would take many times as long.
        "RAY_worker_niceness": "0",
    }
    with _temporary_folder() as folder, _environment(PYTHONPATH=path, RAY_TMPDIR=folder, **settings):
        found = TwoNodes()
        try:
            yield found
        finally:
            found.stop()


@pytest.fixture
def cluster(_cluster: TwoNodes) -> Iterator[TwoNodes]:
    _cluster.join()
    yield _cluster
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
