"""The paper's figures and the report's. Each function returns a matplotlib figure; `save` writes it."""

from ease.reporting.figures.costs import passes_by_phase, running_time
from ease.reporting.figures.curves import accuracy_curves, heat_floor, task_heatmap
from ease.reporting.figures.drawing import save, svg
from ease.reporting.figures.heat import forgetting_by_task, heat_grid
from ease.reporting.figures.neighbours import against_k
from ease.reporting.figures.panels import curve_panels
from ease.reporting.figures.subspaces import SubspaceView, two_subspaces
from ease.reporting.figures.trade_off import accuracy_against_cost

__all__ = [
    "SubspaceView",
    "accuracy_against_cost",
    "accuracy_curves",
    "against_k",
    "curve_panels",
    "forgetting_by_task",
    "heat_floor",
    "heat_grid",
    "passes_by_phase",
    "running_time",
    "save",
    "svg",
    "task_heatmap",
    "two_subspaces",
]
