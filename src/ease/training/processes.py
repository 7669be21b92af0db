"""Worker processes."""

from __future__ import annotations

import os
import threading
import time


def begin_work(threads: int, parent: int) -> None:
    """Initialise a worker process: limit torch to `threads` threads, and exit when the parent exits."""
    exit_with(parent)
    import torch  # takes seconds, during which the parent may exit

    torch.set_num_threads(threads)


def exit_with(parent: int) -> None:
    """Exit this process as soon as its parent process has ended, for whatever reason."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # no cleanup: the result would be lost anyway, and locks must be released

    threading.Thread(target=watch, daemon=True).start()
