"""`ease serve`: a model over HTTP that answers while it learns.

`run.py` starts the process, `service.py` holds its parts (the model, the jobs, the work folder), and `api.py` has the
routes. A request passes `guard.py` first, which checks access and limits (`limits.py`); `uploads.py` receives its
files. `model.py` predicts; `jobs.py` learns in a separate process (`learning.py`). `telemetry.py` writes the log and
the metrics.
"""

from __future__ import annotations

from importlib.util import find_spec

from ease.errors import EaseError

NEEDED = ("fastapi", "uvicorn", "python_multipart")


def require_packages() -> None:
    """Refuse to serve if a package for it is missing."""
    missing = [name.replace("_", "-") for name in NEEDED if find_spec(name) is None]
    if missing:
        raise EaseError(
            f"serving needs {', '.join(missing)}, not installed here: run pip install 'ease-cil[serve]'"
        )
