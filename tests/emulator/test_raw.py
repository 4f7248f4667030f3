"""Launches with raw bytes: descriptors in structures and in memory, preset addresses, a kernel of nvcc."""

import ctypes
import struct

import numpy as np
import pytest

from dsl_kernels.errors import ToolchainError
from dsl_kernels.runtime import toolkit
from ptx_emulator import (
    Descriptor,
    EmulatorError,
    LaunchError,
    RawArguments,
    Region,
    Struct,
    TensorMap,
    launch,
)

from .kernels import simple

BYTES = 64 * 32  # a box of 32 columns and 16 rows of f32
LOAD = """
.shared .align 8 .b8 bar[8];
mov.u32 %r1, %tid.x;
mov.u32 %r2, dyn;
mov.u32 %r3, bar;
{address}
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r3], 1;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 2048;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%d1, {{0, 0}}], \
[%r3];
READY:
bar.sync 0;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
@!%p2 bra WAIT;
ld.param.u64 %d2, [{out}];
shl.b32 %r4, %r1, 2;
LOOP:
add.u32 %r5, %r2, %r4;
ld.shared.u32 %r6, [%r5];
cvt.u64.u32 %d3, %r4;
add.u64 %d4, %d2, %d3;
st.global.u32 [%d4], %r6;
add.u32 %r4, %r4, 128;
setp.lt.u32 %p3, %r4, 2048;
@%p3 bra LOOP;
"""
HEAD = ".extern .shared .align 1024 .b8 dyn[];\n"
# The descriptor follows a pointer and a number, as in a C++ structure with a CUtensorMap member.
IN_STRUCT = simple(
    LOAD.format(address="mov.b64 %d1, s; cvta.param.u64 %d1, %d1; add.u64 %d1, %d1, 64;", out="s"),
    ".param .align 64 .b8 s[256]",
    head=HEAD,
)
IN_MEMORY = simple(
    LOAD.format(address="ld.param.u64 %d1, [m];", out="o"), ".param .u64 o, .param .u64 m", head=HEAD
)
SCALE = simple(
    "mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; ld.param.u64 %d2, [p0]; add.u64 %d2, %d2, %d1;\n"
    "ld.global.f32 %f1, [%d2]; add.f32 %f1, %f1, %f1; st.global.f32 [%d2], %f1;"
)


def tensor() -> np.ndarray:
    return np.arange(16 * 32, dtype=np.float32).reshape(16, 32)


def describe(x: np.ndarray, address: int | None = None) -> Descriptor:
    return Descriptor(x.ctypes.data if address is None else address, 7, (32, 16), (128,), (32, 16))


def test_a_structure_holds_a_tensor_map():
    x, out = tensor(), np.zeros(512, np.float32)
    launch(
        IN_STRUCT,
        1,
        32,
        [Struct([out, np.int32(7), TensorMap(x, (32, 16)), np.int32(1)])],
        dynamic_smem=BYTES,
    )
    np.testing.assert_array_equal(out, x.ravel())


@pytest.mark.parametrize("given", ["encoded in the bytes", "as a descriptor", "as a tensor map"])
def test_parameters_are_bytes_with_addresses(given):
    x, out = tensor(), np.zeros(512, np.float32)
    address = 0x40_0000_0000
    params = bytearray(struct.pack("<Q", address).ljust(192, b"\0"))
    maps = {}
    if given == "encoded in the bytes":
        params[64:] = describe(x, address + 4096).encode()
    else:
        maps[64] = describe(x, address + 4096) if given == "as a descriptor" else TensorMap(x, (32, 16))
    memory = [Region(out, address), Region(x, address + 4096)]
    launch(IN_STRUCT, 1, 32, RawArguments(bytes(params), memory, maps), dynamic_smem=BYTES)
    np.testing.assert_array_equal(out, x.ravel())


def test_a_descriptor_in_global_memory_is_found():
    x, out, holder = tensor(), np.zeros(512, np.float32), np.zeros(1024, np.uint8)
    at = -holder.ctypes.data % 64 + 64
    holder[at : at + 128] = np.frombuffer(describe(x).encode(), np.uint8)
    pointers = [struct.pack("<Q", a) for a in (out.ctypes.data, holder.ctypes.data + at)]
    memory = [Region(out), Region(x), Region(holder)]
    launch(IN_MEMORY, 1, 32, RawArguments(pointers, memory), dynamic_smem=BYTES)
    np.testing.assert_array_equal(out, x.ravel())
    # Kernels may write the hardware's encoding there themselves.
    out[:] = 0
    holder[at : at + 64] = hardware_bits(x, 7, 32)
    launch(IN_MEMORY, 1, 32, RawArguments(pointers, memory), dynamic_smem=BYTES)
    np.testing.assert_array_equal(out, x.ravel())
    holder[at + 8] ^= 1
    with pytest.raises(EmulatorError, match="no tensor map was passed"):
        launch(IN_MEMORY, 1, 32, RawArguments(pointers, memory), dynamic_smem=BYTES)


def hardware_bits(x: np.ndarray, kind: int, columns: int) -> bytearray:
    """A descriptor as host code writes it: address, flags, strides/16, sizes - 1, boxes - 1."""
    words = [0] * 16
    words[0], words[1] = x.ctypes.data & 0xFFFFFFFF, x.ctypes.data >> 32
    words[2] = 2 | 1 << 4 | kind << 7 | 1 << 18
    words[3] = 128 >> 4
    words[8], words[9] = columns - 1, 15
    raw = bytearray(struct.pack("<16I", *words))
    raw[55], raw[56] = columns - 1, 15
    return raw


@pytest.mark.parametrize(("kind", "columns"), [(7, 32), (11, 256)], ids=["f32", "packed 4 bits"])
def test_the_bits_of_the_hardware_are_understood(kind, columns):
    x, out = tensor(), np.zeros(512, np.float32)
    raw = hardware_bits(x, kind, columns)
    params = struct.pack("<Q", out.ctypes.data).ljust(64, b"\0") + bytes(raw).ljust(128, b"\0")
    launch(IN_STRUCT, 1, 32, RawArguments(params, [Region(out), Region(x)]), dynamic_smem=BYTES)
    np.testing.assert_array_equal(out, x.ravel())
    with pytest.raises(EmulatorError, match="no tensor map was passed"):  # in memory that the launch lacks
        launch(IN_STRUCT, 1, 32, RawArguments(params, [Region(out)]), dynamic_smem=BYTES)


def test_coordinates_of_packed_elements_count_elements():
    """Sixteen bytes into rows of 128; the last box ends outside."""
    x, out = np.arange(16 * 128, dtype=np.uint8).reshape(16, 128), np.zeros(512, np.float32)
    text = IN_STRUCT.replace("{0, 0}", "{32, 0}")
    tensor_map = TensorMap(x, (256, 16), dims=(256, 16), strides=(128,), dtype="e2m1")
    launch(text, 1, 32, [Struct([out, np.int32(7), tensor_map, np.int32(1)])], dynamic_smem=BYTES)
    got = out.view(np.uint8).reshape(16, 128)
    np.testing.assert_array_equal(got[:, :112], x[:, 16:])
    assert not got[:, 112:].any()
    with pytest.raises(EmulatorError, match="multiple of 16 bytes for elements of 4 bits"):
        launch(
            text.replace("{32, 0}", "{16, 0}"),
            1,
            32,
            [Struct([out, np.int32(7), tensor_map, np.int32(1)])],
            dynamic_smem=BYTES,
        )


def test_host_addresses_are_right_as_they_are():
    x = np.arange(64, dtype=np.float32)
    inner = struct.pack("<Q", x.ctypes.data + 128)
    launch(SCALE, 1, 32, RawArguments([inner], [Region((x.ctypes.data, x.nbytes), name="x")]))
    np.testing.assert_array_equal(x[32:], 2 * np.arange(32, 64))
    np.testing.assert_array_equal(x[:32], np.arange(32))
    with pytest.raises(EmulatorError, match=r"outside every argument; argument 'x' covers"):
        launch(SCALE, 1, 33, RawArguments([inner], [Region((x.ctypes.data, x.nbytes), name="x")]))
    with pytest.raises(EmulatorError, match="read-only"):
        launch(SCALE, 1, 32, RawArguments([inner], [Region(x, writable=False)]))


def test_the_encoding_says_all_that_the_call_says():
    d = Descriptor(
        1 << 40, 9, (64, 8, 7, 3, 2), (128, 1024, 8192, 1 << 20), (64, 8, 1, 1, 1), (1, 2, 1, 1, 1), 3, 0, 1
    )
    back = Descriptor.decode(d.encode())
    assert back == Descriptor(*[tuple(v) if isinstance(v, list) else v for v in vars(d).values()])
    assert Descriptor.decode(bytes(128)) is None and len(d.encode()) == 128


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_type": 14}, "data type 14"),
        ({"data_type": 13, "dims": (33, 16)}, "no whole bytes"),
        ({"data_type": 13, "box": (16, 16)}, "8 bytes, not a multiple of 16"),
        ({"swizzle": 5}, "swizzle 5"),
        ({"interleave": 1}, "interleave 1"),
        ({"fill": 2}, "fill 2"),
        ({"address": 0}, "null"),
        ({"address": 24}, "not a multiple of 16"),
        ({"dims": (32, 0)}, "must be positive"),
        ({"strides": (120,)}, "multiples of 16"),
        ({"box": (32, 257)}, "outside 1 to 256"),
        ({"box": (64, 16), "swizzle": 3}, "more than the swizzle span"),
        ({"element_strides": (9, 1)}, "element strides"),
    ],
)
def test_what_the_driver_would_refuse(change, message):
    x = tensor()
    fields = vars(describe(x)) | change
    with pytest.raises(LaunchError, match=message):
        Descriptor(**fields).row(0, "x")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: RawArguments([b"", b""], []), "1 parameters"),
        (lambda x: RawArguments([bytes(9)], []), "9 bytes"),
        (lambda x: RawArguments(bytes(9), []), "9 bytes"),
        (lambda x: RawArguments(bytes(8), [Region(x), Region(x)]), "overlap"),
        (lambda x: RawArguments(bytes(8), [Region(x, 0x7000_0000_0100)]), "no global memory"),
        (lambda x: RawArguments(bytes(8), [Region("x")]), "expected an array"),
        (lambda x: RawArguments(bytes(8), [], {3: describe(x)}), "at byte 3"),
    ],
)  # fmt: skip
def test_refusals_name_what_does_not_fit(make, message):
    with pytest.raises(LaunchError, match=message):
        launch(SCALE, 1, 32, make(np.zeros(64, np.float32)))


CUDA = """
struct Job { float* out; const float* in; int n; float by; };
extern "C" __global__ void scale(const Job job) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < job.n) job.out[i] = job.in[i] * job.by;
}
"""


@pytest.mark.compile
def test_a_kernel_of_nvcc_with_a_structure(tmp_path):
    """The example of docs/emulator_runs.md: a ctypes structure with this process's own addresses."""
    try:
        toolkit.nvcc()
    except ToolchainError as error:
        pytest.skip(str(error))
    (tmp_path / "k.cu").write_text(CUDA)
    toolkit.cuda_to_ptx(tmp_path / "k.cu", tmp_path / "k.ptx", "sm_90a", [])

    class Job(ctypes.Structure):
        _fields_ = [
            ("out", ctypes.c_void_p),
            ("inp", ctypes.c_void_p),
            ("n", ctypes.c_int),
            ("by", ctypes.c_float),
        ]

    x, y = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    job = Job(y.ctypes.data, x.ctypes.data, 100, 3.0)
    report = launch(
        (tmp_path / "k.ptx").read_text(), 2, 64, RawArguments([bytes(job)], [Region(x), Region(y)])
    )
    assert report.ok
    np.testing.assert_array_equal(y, 3 * x)
