"""Records of a parsed PTX module: kernels, statements, operands, variables, and the special registers."""

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
#: Special register -> its slot: an ordinary register that the core fills when a warp starts.
SPECIALS = {name: slot for slot, name in enumerate(_SPECIAL_NAMES)}
SPECIALS["%tid"], SPECIALS["%ctaid"] = SPECIALS["%tid.x"], SPECIALS["%ctaid.x"]
#: Clocks are read at execution time; they have no slot.
CLOCKS = {"%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"}
SMEM_RESERVED = 1024  # bytes of shared memory that belong to the system; the kernel's own follow them


@dataclass(frozen=True)
class Reg:
    """A register slot; ``type`` is the declared PTX type; only a predicate can be ``negated``."""

    slot: int
    type: str
    name: str
    negated: bool = False


@dataclass(frozen=True)
class Imm:
    value: int
    is_float: bool = False  # `value` then holds the bits: 32 for 0f, 64 for 0d


@dataclass(frozen=True)
class Sym:
    """The address of a variable, or a label."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Addr:
    """``[base + offset]``; ``extra`` holds operands after a comma in the brackets (tensor coordinates)."""

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
    """``_``: a destination whose value is discarded."""


@dataclass
class Statement:
    """One instruction: opcode, operands, guard, PTX line, and ``.loc`` as (file, line).

    ``outer`` is the place of the outermost call where ``loc`` is in an inlined function, else the same as
    ``loc``.
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
