"""A schedule described: roles, buffers, and each pipeline with its barriers and the actions of both sides."""

from __future__ import annotations

from ..arch import ArchSpec
from ..arguments import checked
from .actions import Action
from .expressions import text_of
from .lang import Schedule, Space
from .plan import barrier_plan, turn_plans
from .transfers import transfer_of


def in_words(actions: tuple[Action, ...]) -> str:
    """The actions of one side, described."""
    return ", ".join(action.words for action in actions) or "-"


def _lanes(schedule: Schedule) -> list[str]:
    """Roles in the order in which data reaches them: first those that read nothing, then their readers."""
    reads = {reader.role for pipe in schedule.pipelines for reader in pipe.readers}
    order = [role.name for role in schedule.roles if role.name not in reads] or [schedule.roles[0].name]
    for name in order:
        for pipe in schedule.pipelines:
            if pipe.producer == name:
                order += [reader.role for reader in pipe.readers if reader.role not in order]
    return order + [role.name for role in schedule.roles if role.name not in order]


def draw(schedule: Schedule) -> list[str]:
    """The roles as lanes and the pipelines, in the order declared, as arrows between them."""
    order = _lanes(schedule)
    heads = []
    for name in order:
        role = schedule.role(name)
        first, warps = int(schedule.first_thread(name)) // 32, role.threads // 32
        heads.append((name, f"warp {first}" if warps == 1 else f"warps {first}..{first + warps - 1}"))
    arrows = [pipe.name + " " * 6 for pipe in schedule.pipelines]
    step = max(len(text) for head in heads for text in (*head, *arrows)) + 3
    at = {name: 2 + i * step for i, name in enumerate(order)}
    lines = [("  " + "".join(f"{head[row]:<{step}}" for head in heads)).rstrip() for row in (0, 1)]
    width = 2 + (len(order) - 1) * step + 1
    for pipe in schedule.pipelines:
        carried = " ".join(pipe.buffers) or "a signal"
        if pipe.stages > 1:
            carried += f", ring of {int(pipe.stages)}"
        elif pipe.rounds == "once":
            carried += ", once"
        for reader in pipe.readers:
            ends = f"{carried}; {pipe.fill.value} -> {reader.engine.value}"
            row = [" "] * width
            for column in at.values():
                row[column] = "|"
            low, high = sorted((at[pipe.producer], at[reader.role]))
            if low == high:
                ends = f"{pipe.name}, {transfer_of(pipe).ACROSS}: {ends}"
            else:
                row[low + 1 : high] = f" {pipe.name} ".center(high - low - 1, "=")
                if at[reader.role] == high:
                    row[high - 1] = ">"
                else:
                    row[low + 1] = "<"
            lines.append(f"{''.join(row)}   {ends}")
    return lines


@checked
def describe(schedule: Schedule, arch: ArchSpec) -> str:
    """A drawing of the pipelines, then the roles, buffers, pipelines and totals of `schedule`."""
    lines = [*draw(schedule), ""] if schedule.pipelines else []
    lines.append("roles")
    for role in schedule.roles:
        first = schedule.first_thread(role.name)
        budget = f", {role.registers} registers" if role.registers else ""
        doc = f"  {role.doc}" if role.doc else ""
        lines.append(f"  {role.name:<10} threads {first}..{first + role.threads - 1}{budget}{doc}")
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
        carried = " ".join(pipe.buffers) or "signal"
        lines.append(f"  {name}: {pipe.producer} ({pipe.fill.value}) ==[{carried}: {ring}]==> {readers}")
        if item.full is not None:
            tx = f", {item.full.tx_bytes} bytes" if item.full.tx_bytes else ""
            lines.append(f"    full  x{item.full.count}{tx}: {pipe.producer} {in_words(item.commit)}")
        else:
            lines.append(f"    words through {pipe.through}: {pipe.producer} sends")
        for reader in pipe.readers:
            lines.append(f"      {reader.role}: {in_words(item.wait[reader.role])}")
        if item.empty is not None:
            lines.append(f"    empty x{item.empty.count}: {pipe.producer} {in_words(item.acquire)}")
            for reader in pipe.readers:
                lines.append(f"      {reader.role}: {in_words(item.release[reader.role])}")
    for name, turns in turn_plans(schedule).items():
        members = (role if replica == 0 else f"{role} {replica}" for role, replica in turns.members)
        lines.append(f"  in turn {name}: {' -> '.join(members)} -> ...")
    for name, roles in schedule.named_barriers.items():
        lines.append(f"  named barrier {name}: {', '.join(roles)}")
    total = schedule.smem_bytes() + plan.smem_bytes
    totals = [f"{schedule.threads} threads", f"{total} of {arch.smem_per_cta} bytes of shared memory"]
    if schedule.tmem_columns():
        totals.append(f"{schedule.tmem_columns()} of {arch.tmem_columns} tensor-memory columns")
    totals.append(f"grid ({', '.join(map(text_of, schedule.grid))})")
    lines.append(f"totals: {', '.join(totals)}")
    return "\n".join(lines)
