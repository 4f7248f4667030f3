"""A schedule as text: roles, buffers, and each pipeline with its barriers and both sides' steps."""

from __future__ import annotations

from ..arch import ArchSpec
from ..arguments import checked
from .lang import Schedule, Space
from .plan import Action, barrier_plan, turn_plans

_SHORT = {
    Action.WAIT_EMPTY: "wait empty",
    Action.EXPECT_TX: "arrive + expect bytes",
    Action.NOINC_ARRIVE_FULL: "hardware arrives per thread",
    Action.ARRIVE_FULL: "arrive full",
    Action.COMMIT_FULL: "commit -> full",
    Action.WAIT_FULL: "wait full",
    Action.ARRIVE_EMPTY: "arrive empty",
    Action.COMMIT_EMPTY: "commit -> empty",
    Action.ARRIVE_EMPTY_CLUSTER: "arrive empty in every CTA",
    Action.COMMIT_EMPTY_CLUSTER: "commit -> empty in every CTA",
    Action.FENCE_PROXY: "fence.proxy.async",
    Action.FENCE_BEFORE: "fence before",
    Action.FENCE_AFTER: "fence after",
    Action.WAIT_TMEM_LOAD: "wait::ld",
    Action.WAIT_TMEM_STORE: "wait::st",
    Action.WAIT_WGMMA: "wgmma wait",
    Action.ELECT: "one lane a warp",
}


def steps(actions: tuple[Action, ...]) -> str:
    """The actions of one side in words."""
    return ", ".join(_SHORT[action] for action in actions) or "-"


@checked
def describe(schedule: Schedule, arch: ArchSpec) -> str:
    """Roles, buffers, pipelines and totals of `schedule`, at most about 110 columns wide."""
    lines = ["roles"]
    for role in schedule.roles:
        first = schedule.first_thread(role.name)
        budget = f", {role.registers} registers" if role.registers else ""
        lines.append(
            f"  {role.name:<10} threads {first}..{first + role.threads - 1}{budget}{'  ' + role.doc if role.doc else ''}"
        )
    lines.append("buffers")
    for buffer in schedule.buffers:
        shape = "x".join(str(extent) for extent in buffer.shape)
        stages = f"{buffer.stages} stages of " if buffer.stages > 1 else ""
        where = {
            Space.SHARED: "shared",
            Space.TENSOR: "tensor memory",
            Space.REGISTER: f"registers of {buffer.role}",
        }[buffer.space]
        swizzle = f", {buffer.swizzle}-byte swizzle" if buffer.swizzle else ""
        alias = f", in the storage of {buffer.alias}" if buffer.alias else ""
        lines.append(f"  {buffer.name:<10} {stages}{shape} {buffer.dtype}, {where}{swizzle}{alias}")
    plan = barrier_plan(schedule)
    if plan.pipelines:
        lines.append("pipelines")
    for name, item in plan.pipelines.items():
        pipe = item.pipeline
        readers = ", ".join(f"{reader.role} ({reader.engine.value})" for reader in pipe.readers)
        ring = f"{pipe.stages}-slot ring" if pipe.rounds == "loop" else "once"
        lines.append(
            f"  {name}: {pipe.producer} ({pipe.fill.value}) ==[{' '.join(pipe.buffers) or 'signal'}: {ring}]==> {readers}"
        )
        tx = f", {item.full.tx_bytes} bytes" if item.full.tx_bytes else ""
        lines.append(f"    full  x{item.full.count}{tx}: {pipe.producer} {steps(item.commit)}")
        for reader in pipe.readers:
            lines.append(f"      {reader.role}: {steps(item.wait[reader.role])}")
        if item.empty is not None:
            lines.append(f"    empty x{item.empty.count}: {pipe.producer} {steps(item.acquire)}")
            for reader in pipe.readers:
                lines.append(f"      {reader.role}: {steps(item.release[reader.role])}")
    for name, turns in turn_plans(schedule).items():
        members = [role if replica == 0 else f"{role} {replica}" for role, replica in turns.members]
        lines.append(f"  in turn {name}: {' -> '.join(members)} -> ...")
    for name, members in schedule.named_barriers.items():
        lines.append(f"  named barrier {name}: {', '.join(members)}")
    total = schedule.smem_bytes() + plan.smem_bytes
    tmem = (
        f", {schedule.tmem_columns()} of {arch.tmem_columns} tensor-memory columns"
        if schedule.tmem_columns()
        else ""
    )
    lines.append(
        f"totals: {schedule.threads} threads, {total} of {arch.smem_per_cta} bytes of shared memory{tmem}, grid ({', '.join(schedule.grid)})"
    )
    return "\n".join(lines)
