"""What a PTX module says, as records: its kernels, their statements and operands, and the special registers."""

from __future__ import annotations

from dataclasses import dataclass, field

_SPECIAL_NAMES = [
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%smid",
    "%nsmid",
    "%gridid",
    "%clusterid.x",
    "%clusterid.y",
    "%clusterid.z",
    "%nclusterid.x",
    "%nclusterid.y",
    "%nclusterid.z",
    "%cluster_ctaid.x",
    "%cluster_ctaid.y",
    "%cluster_ctaid.z",
    "%cluster_nctaid.x",
    "%cluster_nctaid.y",
    "%cluster_nctaid.z",
    "%cluster_ctarank",
    "%cluster_nctarank",
    "%is_explicit_cluster",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
    "%dynamic_smem_size",
    "%total_smem_size",
    "%aggr_smem_size",
    "%reserved_smem_offset_begin",
    "%reserved_smem_offset_end",
    "%reserved_smem_offset_cap",
]
#: Special registers are ordinary register slots that the core fills when a warp starts.
SPECIALS = {name: slot for slot, name in enumerate(_SPECIAL_NAMES)}
SPECIALS["%tid"], SPECIALS["%ctaid"] = SPECIALS["%tid.x"], SPECIALS["%ctaid.x"]
#: Clocks are read at execution time; they have no slot.
CLOCKS = {"%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"}
SMEM_RESERVED = 1024  # the system's part of shared memory: the first byte a kernel owns has this offset


@dataclass(frozen=True)
class Reg:
    """A register slot; ``type`` is the declared PTX type, ``negated`` only occurs on predicates."""

    slot: int
    type: str
    name: str
    negated: bool = False


@dataclass(frozen=True)
class Imm:
    value: int
    is_float: bool = False  # value holds the bits then: 32 for 0f, 64 for 0d


@dataclass(frozen=True)
class Sym:
    """The address of a variable, or a label."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Addr:
    """``[base + offset]``; ``extra`` holds what follows a comma inside the brackets (tensor coordinates)."""

    base: Reg | Imm | Sym
    offset: int = 0
    extra: tuple[object, ...] = ()


@dataclass(frozen=True)
class Vec:
    items: tuple[object, ...]


@dataclass(frozen=True)
class Pair:
    """``a|b``: two destinations."""

    first: object
    second: object


@dataclass(frozen=True)
class Clock:
    name: str


@dataclass(frozen=True)
class Sink:
    """``_``: a destination that is thrown away."""


@dataclass
class Statement:
    """One instruction: guard, opcode split at dots, operands, PTX line, ``.loc`` (file, line).

    ``outer`` is the place that an inlined function was inlined at, through all functions around it; ``loc`` where there
    is none.
    """

    opcode: str
    operands: list[object]
    guard: Reg | None
    line: int
    loc: tuple[int, int]
    text: str
    outer: tuple[int, int] = (0, 0)


@dataclass
class Variable:
    """A ``.shared``, ``.global``, ``.const`` or ``.local`` array."""

    name: str
    space: str
    align: int
    size: int  # -1: extern, sized at launch
    init: bytes | None = None


@dataclass
class Param:
    name: str
    type: str
    size: int
    align: int
    offset: int = 0
    is_array: bool = False


@dataclass
class Entry:
    """One kernel of the module."""

    name: str
    params: list[Param]
    body: list[Statement] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    branch_targets: dict[str, list[str]] = field(default_factory=dict)
    registers: int = len(SPECIALS)
    reqntid: tuple[int, ...] | None = None
    maxntid: tuple[int, ...] | None = None
    maxnreg: int | None = None
    reqcluster: tuple[int, ...] | None = None
    line: int = 0


@dataclass
class Module:
    entries: dict[str, Entry]
    variables: dict[str, Variable]
    files: dict[int, str]
    target: str
    version: str
