"""The schedules by the names that ops give them."""

from baracuda.backends.cuda.schedules import elementwise, indexing, rope, window
from baracuda.backends.cuda.steps import Planner

PLANNERS: dict[str, Planner] = {
    "elementwise": elementwise.plan,
    "rope": rope.plan,
    "window": window.forward,
    "covering": window.backward,
    "gather": indexing.gather,
    "scatter": indexing.scatter,
}
