"""The tile language in one import: the names in which a schedule, a body and a leaf are written.

docs/declaring.md, bodies.md, statements.md and leaves.md explain each name, and `examples/` introduces them
one idea at a time.
"""

from .abi import TensorMap
from .arch import ArchSpec
from .device.torch.floats import divide, is_nan, max_of_lanes, rsqrt, sqrt, sum_of_lanes
from .device.torch.fragment import (
    divide_rows,
    exp2_below,
    quad_most,
    quad_sum,
    read_tensor,
    round_to,
    row_maxima,
    row_most,
    row_sum,
    row_sums,
    scale_rows,
    stage_rows,
    write_rows,
    write_tensor,
)
from .device.torch.warps import exp2
from .problems.base import OperandSpec
from .tile.channel import Channel
from .tile.counting import moves
from .tile.frontend import Names, State, inline, named, recorded, rolled, unrolled
from .tile.kinds import (
    BFloat16,
    Boolean,
    Changes,
    Float16,
    Float32,
    Global,
    Int32,
    Int64,
    LeafRecorder,
    Registers,
    Sets,
    Shared,
    Tensor,
    Uint8,
    Uint32,
    Writes,
)
from .tile.lang import (
    START,
    Body,
    Buffer,
    Engine,
    Knob,
    Mma,
    Pipeline,
    Reader,
    Role,
    Schedule,
    Size,
    Space,
    Turn,
)
from .tile.leaf_text import WARP, by_text
from .tile.text import Box, Recorder, Value, View, ceildiv, maximum, minimum, select

__all__ = [
    "START", "WARP", "ArchSpec", "BFloat16", "Body", "Boolean", "Box", "Buffer", "Changes", "Channel",
    "Engine", "Float16", "Float32", "Global", "Int32", "Int64", "Knob", "LeafRecorder", "Mma", "Names",
    "OperandSpec", "Pipeline", "Reader", "Recorder", "Registers", "Role", "Schedule", "Sets", "Shared",
    "Size", "Space", "State", "Tensor", "TensorMap", "Turn", "Uint8", "Uint32", "Value", "View", "Writes",
    "by_text", "ceildiv", "divide", "divide_rows", "exp2", "exp2_below", "inline", "is_nan", "max_of_lanes",
    "maximum", "minimum", "moves", "named", "quad_most", "quad_sum", "read_tensor", "recorded", "rolled",
    "round_to", "row_maxima", "row_most", "row_sum", "row_sums", "rsqrt", "scale_rows", "select", "sqrt",
    "stage_rows", "sum_of_lanes", "unrolled", "write_rows", "write_tensor",
]  # fmt: skip
