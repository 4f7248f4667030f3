"""The tile language: declare a kernel once; its check, barrier plan, interpreter, cost and drawing follow."""

from .lang import Buffer, Engine, Guard, Knob, Mma, Pipeline, Reader, Role, Schedule, Space
from .plan import Barrier, BarrierPlan, PipelinePlan, barrier_plan
from .transfers import Action

__all__ = [
    "Action", "Barrier", "BarrierPlan", "Buffer", "Engine", "Guard", "Knob", "Mma", "Pipeline", "PipelinePlan",
    "Reader", "Role", "Schedule", "Space", "barrier_plan",
]  # fmt: skip
