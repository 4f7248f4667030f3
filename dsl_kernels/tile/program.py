"""A tile program: the declaration of a kernel, and the text that its bodies record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..abi import Operand
from ..errors import DeclarationError, DslKernelError, did_you_mean
from . import places
from .frontend import State
from .lang import PROBE, START, Body, Guard, Knob, Schedule, built_for
from .probes import WORKSPACE, Probed, probed
from .text import FAILURES, Recorder, TearDown, Text, refusal
from .uses import check_uses
from .validate import validate

if TYPE_CHECKING:
    from ..arch import ArchSpec
    from ..problems.base import OperandSpec, Problem


_MOST_TEXTS = 512
_texts: dict[tuple[Any, ...], tuple[TileProgram, ArchSpec, Text]] = {}
"""The texts recorded last, by the addresses of program and arch and by knobs. An entry keeps both objects
alive, so that no other object gets their addresses."""


@dataclass(frozen=True)
class TileProgram:
    """One kernel, declared: what it computes (`problem`), how (`declare`, `bodies`), what is swept (`knobs`).

    Attributes:
        declare: (knobs as a namespace, arch) -> Schedule.
        bodies: (knobs, arch) -> a function of a Recorder for each role, and one (START) for what every thread
            does first. If START returns a State, the other bodies get it as a second argument.
        scratch: what the kernel takes beside the problem's operands: workspaces, and integers of the launch
            plan (scalars); or a function of the knobs that gives them. Their extents are dims of the call or
            of the plan. In a call, workspaces come before the problem's last scalars, and integers after
            them.
        guards: conditions on the call, checked by the registry. A knob with the name and number of an
            operand's extent fixes that extent: unless a guard has the name, one that refuses other values is
            added in front. Of a problem with several forms, so is one that refuses the forms that the variant
            does not take.
        form_of: knobs as a namespace -> the form of the problem that a variant takes; by default the one that
            a knob's value names.
        constraints: rules of this program, (knobs, schedule, arch) -> (code, figure, limit, fix) of each
            violation.
    """

    op: str
    problem: Problem
    knobs: tuple[Knob, ...]
    declare: Callable[[SimpleNamespace, ArchSpec], Schedule]
    bodies: Callable[[SimpleNamespace, ArchSpec], Mapping[str, Body]]
    scratch: tuple[OperandSpec, ...] | Callable[[SimpleNamespace], tuple[OperandSpec, ...]] = ()
    guards: tuple[Guard, ...] = ()
    form_of: Callable[[SimpleNamespace], str] | None = None
    constraints: (
        Callable[[SimpleNamespace, Schedule, ArchSpec], Iterator[tuple[str, str, str, str]]] | None
    ) = None

    def __post_init__(self) -> None:
        guarded = {guard.name for guard in self.guards}
        fixing = [knob.name for knob in self.knobs if knob.name not in guarded and self._is_extent(knob.name)]
        forms = "form" not in guarded and len(self.problem.forms) > 1
        added = (*map(built_for, fixing), *((Guard("form", self._other_form),) if forms else ()))
        object.__setattr__(self, "guards", (*added, *self.guards))

    def _other_form(self, knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
        built, asked = self.form(knobs), call.get("form")
        return None if asked in (None, built) else f"form = {asked}, built for {built}"

    def _is_extent(self, name: str) -> bool:
        return any(name in spec.shape for form in self.problem.forms.values() for spec in form)

    def schedule(self, knobs: Mapping[str, Any], arch: ArchSpec) -> Schedule:
        """The schedule at `knobs` on `arch`, with its internal references checked.

        Raises:
            DeclarationError: a buffer, role or pipeline refers to something that is not declared.
        """
        schedule = self.declare(SimpleNamespace(**knobs), arch)
        validate(self.op, schedule)
        return schedule

    def text(self, knobs: Mapping[str, Any], arch: ArchSpec) -> Text:
        """The text that the bodies record at `knobs` on `arch`; recorded once and cached.

        Raises:
            DeclarationError: a role has no body, a body uses what the schedule does not declare, or no body
                uses something that is declared.
        """
        # By type too: a named size equals a plain int, but prints differently.
        key = id(self), id(arch), *((name, type(knobs[name]), knobs[name]) for name in sorted(knobs))
        entry = _texts.get(key)
        if entry is None:
            entry = _texts[key] = self, arch, self._recorded(knobs, arch)
            for oldest in list(_texts)[:-_MOST_TEXTS]:
                _texts.pop(oldest, None)
        return entry[2]

    def _recorded(self, knobs: Mapping[str, Any], arch: ArchSpec) -> Text:
        schedule = self.schedule(knobs, arch)
        text = self.recorded(knobs, arch, schedule)
        check_uses(self.op, self.spelled(knobs), schedule, text, self.declared_operands(knobs))
        return probed(text, schedule, knobs[PROBE.name]).text if knobs.get(PROBE.name) else text

    def recorded(self, knobs: Mapping[str, Any], arch: ArchSpec, schedule: Schedule) -> Text:
        """The text that the bodies record, without probes and not yet checked against the schedule."""
        space = SimpleNamespace(**knobs)
        bodies, operands = dict(self.bodies(space, arch)), self.declared_operands(knobs)
        shared: State | None = None
        declared: set[str] = set()
        named: dict[str, Any] = {}

        def record(role: str | None, body: Any) -> tuple[tuple[Any, ...], Any]:
            recorder = Recorder(space, schedule, arch, role, operands)
            recorder.variables |= declared
            recorder.named |= named
            # A body that is not marked @recorded is registered here, so that errors name its lines.
            places.note_function(body)
            try:
                returned = body(recorder, shared.handed(recorder)) if shared is not None else body(recorder)
            except DslKernelError as error:
                raise places.located(error, error.__traceback__) from error
            except FAILURES as error:
                raise refusal(f"program {self.op}, body {role or START}", error) from error
            if role is None:
                declared.update(recorder.variables)
                named.update(recorder.named)
            return tuple(recorder.statements), returned

        for part in (START, *(role.name for role in schedule.roles)):
            if part not in bodies:
                raise DeclarationError(
                    f"program {self.op}, {part}", expected="a body", got="none", fix="name one in bodies"
                )
        for part in bodies:
            if part != START and part not in {role.name for role in schedule.roles}:
                raise DeclarationError(
                    f"program {self.op}, body {part}",
                    expected="a declared role: " + ", ".join(role.name for role in schedule.roles),
                    got=part,
                    fix=did_you_mean(part, [role.name for role in schedule.roles]) or "remove the body",
                )
        start, returned = record(None, bodies[START])
        shared = returned if isinstance(returned, State) else None
        end = (TearDown(),) if schedule.tmem_columns() else ()
        roles = {role.name: record(role.name, bodies[role.name])[0] for role in schedule.roles}
        return Text(start, roles, end)

    def probes(self, knobs: Mapping[str, Any], arch: ArchSpec) -> Probed:
        """The regions that a variant with these knobs counts, and their places in its workspace."""
        plain = {name: value for name, value in knobs.items() if name != PROBE.name}
        return probed(self.text(plain, arch), self.schedule(plain, arch), knobs[PROBE.name])

    def declared_operands(self, knobs: Mapping[str, Any]) -> tuple[OperandSpec, ...]:
        """The operands of a variant without probes, in call order: the problem's and the kernel's scratch."""
        given = self.problem.operands(self.form(knobs))
        at = max((i + 1 for i, spec in enumerate(given) if spec.kind != "scalar"), default=0)
        scratch = self._scratch(knobs)
        workspaces = tuple(spec for spec in scratch if spec.kind != "scalar")
        integers = tuple(spec for spec in scratch if spec.kind == "scalar")
        return (*given[:at], *workspaces, *given[at:], *integers)

    def _scratch(self, knobs: Mapping[str, Any]) -> tuple[OperandSpec, ...]:
        return self.scratch(SimpleNamespace(**knobs)) if callable(self.scratch) else self.scratch

    def own_operands(self, knobs: Mapping[str, Any]) -> tuple[OperandSpec, ...]:
        """Operands that a variant has beside its problem's: its scratch, and the workspace of its probes."""
        return (*self._scratch(knobs), *((WORKSPACE,) if knobs.get(PROBE.name) else ()))

    def workspace_dims(
        self, knobs: Mapping[str, Any], arch: ArchSpec, dims: Mapping[str, int]
    ) -> dict[str, int]:
        """The extents of the probes' workspace in a launch of these `dims`."""
        return self.probes(knobs, arch).dims(dims) if knobs.get(PROBE.name) else {}

    def form(self, knobs: Mapping[str, Any], otherwise: str = "") -> str:
        """The form of the problem that a variant takes.

        `form_of` decides, or else the knob whose value is a form's name, or else `otherwise`, or else it is
        the first.
        """
        if self.form_of is not None:
            return self.form_of(SimpleNamespace(**knobs))
        forms = self.problem.forms
        named = (str(value) for value in knobs.values() if value in forms)
        return next(named, otherwise or next(iter(forms)))

    def operands(self, knobs: Mapping[str, Any]) -> tuple[Operand, ...]:
        """The arguments of a variant's launch, in call order.

        An extent is a number where a knob of the same name fixes it.
        """
        fixed = {name: value for name, value in knobs.items() if isinstance(value, int)}
        return tuple(
            Operand.scalar(o.name, o.torch_name)
            if o.kind == "scalar"
            else Operand.tensor(
                o.name,
                o.torch_name,
                *(fixed.get(extent, extent) if isinstance(extent, str) else extent for extent in o.shape),
                strides=o.layout,
                written=o.kind != "in",
            )
            for o in (*self.declared_operands(knobs), *((WORKSPACE,) if knobs.get(PROBE.name) else ()))
        )

    def spelled(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """The knobs that are not at their plain value, which tell variants apart."""
        plain = {knob.name: knob.plain for knob in (*self.knobs, PROBE)}
        return {name: value for name, value in knobs.items() if value != plain[name]}

    def variant_id(self, backend: str, arch: ArchSpec, knobs: Mapping[str, Any]) -> str:
        """`<op>__<backend>_<arch>__<knobs>`: the name of file, symbol, cache folder, test and tuned value."""
        spelled = self.spelled(knobs)
        parts = [knob.spell(knobs[knob.name]) for knob in (*self.knobs, PROBE) if knob.name in spelled]
        return f"{self.op}__{backend}_{arch.tag}__{'_'.join(parts)}"
