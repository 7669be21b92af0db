"""A Ray cluster: found or started in one place, with one line for every way in which that can fail."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from ease.errors import EaseError, one_line

HERE = "local"
"""The address that stands for a cluster of this machine alone, unless RAY_ADDRESS names another."""
OBJECT_STORE = 200 * 2**20
"""Bytes of shared memory of a cluster that is started here. Ray's default is a third of the machine's memory."""

KNOCK_SECONDS = 10.0
"""How long a cluster may take to answer."""

_ADDRESS = re.compile(r"(ray://)?(\[[0-9a-fA-F:.]+\]|[\w.-]+):[0-9]{1,5}|auto|local")
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_INHERITED = ("PYTHONPATH", "EASE_DATA", "EASE_WEIGHTS", "EASE_CACHE")
"""Variables that processes on other nodes get from the command."""


def looks_like_address(word: str) -> bool:
    """Whether a word can be the address of a cluster: HOST:PORT, ray://HOST:PORT, auto or local."""
    return _ADDRESS.fullmatch(word) is not None


def import_ray() -> Any:
    """The module `ray`; one line says how to install it if it is missing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise EaseError(
            "Ray is not installed, and --ray needs it: pip install 'ease-cil[ray]', or leave --ray out"
        ) from error
    return ray


@contextmanager
def connected(address: str = HERE, object_store: int = OBJECT_STORE) -> Iterator[Any]:
    """The module `ray`, connected to a cluster inside the `with`. What is printed there goes to the error stream.

    Args:
        address: of a cluster that runs; `local` starts one on this machine, unless RAY_ADDRESS names another. A
            connection that is there already is used and left as it is.
        object_store: bytes of shared memory, if a cluster is started here.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    if not looks_like_address(address):
        raise EaseError(f"'{address}' is not the address of a Ray cluster: write HOST:PORT, or leave it out")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    options["address"] = address = (os.environ.get("RAY_ADDRESS") or HERE) if address == HERE else address
    if address == HERE:  # said in words: without an address Ray takes the last cluster that was started here
        options |= {"object_store_memory": object_store, "include_dashboard": False}
    else:
        options["runtime_env"] = {"env_vars": {n: os.environ[n] for n in _INHERITED if n in os.environ}}
    where = "this machine" if address == HERE else address
    try:
        _knock(where)
        with _sigterm_kept():
            ray.init(**options)
    except (ConnectionError, TimeoutError, RuntimeError, ValueError, OSError) as error:
        raise EaseError(
            f"cannot reach the Ray cluster at {where} ({one_line(str(error))[:200]}): "
            "start it with 'ray start --head', or leave the address out; "
            "if it asks for a token, set RAY_AUTH_MODE=token"
        ) from error
    # Ray prints that nodes were lost, between the lines of our JSON, and does so until it is shut down.
    with redirect_stdout(sys.stderr):
        try:
            yield ray
        finally:
            ray.shutdown()


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Ray replaces what a process does when it is told to stop. A server would then not end as it should."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _knock(address: str) -> None:
    """Ray itself tries for many minutes to reach a host that is not there, or a head whose process is stopped.

    The kernel accepts connections for a process that is stopped. One that works answers the first bytes of HTTP/2,
    which Ray speaks, at once; what it says does not matter here.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    with socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS) as connection:
        connection.sendall(_PREFACE)
        try:
            connection.recv(1)
        except ConnectionError:  # it speaks TLS, perhaps
            pass
        except TimeoutError:
            raise TimeoutError(f"it does not answer within {KNOCK_SECONDS:g} seconds") from None


def node_name() -> str:
    """What people call the node of a cluster that this process runs on."""
    ray = import_ray()
    return f"{socket.gethostname()}/{ray.get_runtime_context().get_node_id()[:6]}"
