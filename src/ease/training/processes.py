"""Processes that work for another one."""

from __future__ import annotations

import os
import threading
import time


def begin_work(threads: int, parent: int) -> None:
    """First thing in such a process: how many threads torch may use, and whose end is its own."""
    leave_with(parent)
    import torch  # takes seconds, in which the parent may end

    torch.set_num_threads(threads)


def leave_with(parent: int) -> None:
    """From now on this process ends at once when its parent does, however the parent ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # killed as it was: nobody would collect what goes on here, and locks would stay held

    threading.Thread(target=watch, daemon=True).start()
