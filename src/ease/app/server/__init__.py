"""`ease serve`: a model over HTTP that answers while it learns.

`service.py` holds what runs (the model, the jobs, the work folder), `api.py` the routes, `run.py` the process. A
request passes `guard.py` first; what it carries is taken in by `uploads.py`; `model.py` predicts, `jobs.py` learns, in
a process of its own (`learning.py`); `telemetry.py` tells of it.
"""

from __future__ import annotations

from importlib.util import find_spec

from ease.errors import EaseError

NEEDED = ("fastapi", "uvicorn", "python_multipart")


def require_packages() -> None:
    """Serving needs packages that learning does not."""
    missing = [name.replace("_", "-") for name in NEEDED if find_spec(name) is None]
    if missing:
        raise EaseError(
            f"serving needs {', '.join(missing)}, not installed here: run pip install 'ease-cil[serve]'"
        )
