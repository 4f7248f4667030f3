"""The tile language: declare a kernel once; its checks, barrier plan, meaning, cost and drawing follow."""

from .actions import Action
from .lang import Buffer, Engine, Guard, Knob, Mma, Pipeline, Reader, Role, Schedule, Space
from .plan import Barrier, BarrierPlan, PipelinePlan, barrier_plan

__all__ = [
    "Action", "Barrier", "BarrierPlan", "Buffer", "Engine", "Guard", "Knob", "Mma", "Pipeline",
    "PipelinePlan", "Reader", "Role", "Schedule", "Space", "barrier_plan",
]  # fmt: skip
