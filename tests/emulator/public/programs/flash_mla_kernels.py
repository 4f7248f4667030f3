"""FlashMLA's sparse attention, compiled by nvcc and launched as its host code does.

The variable FLASH_MLA names a checkout of FlashMLA, CUTLASS_EXAMPLES the folder `examples/python/CuTeDSL` of
CUTLASS's. References are of float64.
"""

import ctypes
import math
import os
import re
import struct
from pathlib import Path

import torch
from _check import close, main, program, rand
from _cuda import compiled, launch, tensor_map

VALUES = 512  # elements of a key that are the value too
SCALE = 0.05
REST = bytes(128)  # of a copy of CuTe, after its tensor map


def kernel(arch, path, plan):
    """The PTX of one of FlashMLA's instantiations, and the bytes of its shared memory."""
    sources = Path(os.environ["FLASH_MLA"]) / "csrc"
    cutlass = Path(os.environ["CUTLASS_EXAMPLES"]).parents[2] / "include"
    ptx = compiled(
        arch,
        f'#include "{path}"\n__device__ int shared_bytes = sizeof({plan});\n',
        [sources, sources / "kerutils/include", cutlass],
        "-DNDEBUG",
        "--expt-extended-lambda",
        "--use_fast_math",
    )
    return ptx, int(re.search(r"shared_bytes = (\d+);", ptx).group(1))


def packed(*fields):
    """A structure as C lays it out: ints, floats, pointers to tensors, tensor maps at multiples of 128."""
    raw = b""
    for field in fields:
        if hasattr(field, "getPtr"):
            item, align = ctypes.string_at(int(field.getPtr()), 128), 128
        elif isinstance(field, bytes):
            item, align = field, 1
        elif isinstance(field, (int, float)):
            item, align = struct.pack("f" if isinstance(field, float) else "i", field), 4
        else:
            item, align = struct.pack("P", 0 if field is None else field.data_ptr()), 8
        raw += bytes(-len(raw) % align) + item
    return ctypes.create_string_buffer(raw, len(raw) + 128)


def reference(q, kv, ids, valid, sink):
    """Attention of each query over its rows, with log-sum-exp and largest logit."""
    rows = kv.double()[ids.clamp(0, len(kv) - 1).long()]
    logits = torch.einsum("thd,tkd->thk", q.double(), rows) * SCALE
    logits.masked_fill_(~valid[:, None], -math.inf)
    lse = torch.logsumexp(logits, -1)
    weights = torch.exp(logits - torch.logaddexp(lse, sink.double())[..., None])
    return weights @ rows[..., :VALUES], lse, logits.amax(-1)


def prefill(ptx, smem, heads, width, topk, maps, lengths=None, cluster=1, threads=384):
    """Two queries; ids of both signs, some beyond the keys. `maps(q, kv, out)` gives the second parameter."""
    queries, keys = 2, 300
    q, kv = rand(queries, heads, width, dtype=torch.bfloat16), rand(keys, width, dtype=torch.bfloat16)
    ids = torch.randint(-20, keys + 20, (queries, topk), dtype=torch.int32, device="cuda")
    sink = rand(heads)
    out = torch.zeros(queries, heads, VALUES, dtype=torch.bfloat16, device="cuda")
    largest, lse = (torch.zeros(queries, heads, device="cuda") for _ in range(2))
    length = None if lengths is None else torch.tensor(lengths, dtype=torch.int32, device="cuda")
    parameters = packed(
        queries, keys, heads, 1, width, VALUES, topk, SCALE, SCALE * math.log2(math.e), q, kv, ids, sink,
        length, heads * width, width, width, width, topk, topk, out, largest, lse, 132, None,
    )  # fmt: skip
    launch(ptx, (queries * cluster, 1, 1), threads, smem, [parameters, maps(q, kv, out)], cluster)
    valid = (ids >= 0) & (ids < keys)
    if length is not None:
        valid &= torch.arange(topk) < length[:, None]
    for got, want in zip((out, lse, largest), reference(q, kv, ids, valid, sink), strict=True):
        close(got, want, 0.01)


def hopper(width, lengths=None):
    instance, plan = (
        f"phase1_k{width}{'_topklen' if lengths else ''}",
        f"{width}, {str(bool(lengths)).lower()}",
    )
    ptx, smem = kernel(
        "sm_90a",
        f"sm90/prefill/sparse/instantiations/{instance}.cu",
        f"sm90::fwd::KernelTemplate<{plan}>::SharedMemoryPlan",
    )

    def maps(q, kv, out):
        queries = tensor_map(q, (64, 64, 1), 128)
        return packed(q.shape[1], width, len(q), queries, REST, tensor_map(out, (64, 64, 1), 128))

    prefill(ptx, smem, 64, width, 384, maps, lengths)


@program
def hopper_sparse_prefill():
    hopper(512)


@program
def hopper_sparse_prefill_lengths():
    hopper(576, (384, 137))


@program
def hopper_sparse_decode():
    """Pages of 656-byte tokens: 512 of e4m3, four scales, 64 of bf16. Two CTAs share what each unpacks."""
    sequences, heads, width, topk, page, pages = 2, 128, 576, 192, 64, 3
    ptx, smem = kernel(
        "sm_90a",
        "sm90/decode/sparse_fp8/instantiations/v32_persistent_h128.cu",
        "sm90::decode::sparse_fp8::KernelTemplate<ModelType::V32, 128>::SharedMemoryPlan",
    )
    q = rand(sequences, 1, heads, width, dtype=torch.bfloat16)
    numbers = rand(page * pages, VALUES).to(torch.float8_e4m3fn)
    scales, rope = (
        torch.rand(page * pages, 4, device="cuda") + 0.5,
        rand(page * pages, 64, dtype=torch.bfloat16),
    )
    kv = torch.cat([x.view(torch.uint8) for x in (numbers, scales, rope)], 1).contiguous()
    ids = torch.randint(-1, page * pages, (sequences, 1, topk), dtype=torch.int32, device="cuda")
    sink = rand(heads)
    out = torch.zeros(sequences, 1, heads, VALUES, dtype=torch.bfloat16, device="cuda")
    lse = torch.zeros(sequences, 1, heads, device="cuda")
    # Sequences and tiles, from the first to the last, of the one group of CTAs; nothing is split.
    work = torch.tensor([0, sequences - 1, 0, topk // 64, 0, 0, 0, 0], dtype=torch.int32, device="cuda")
    splits = torch.arange(sequences + 1, dtype=torch.int32, device="cuda")
    parameters = packed(
        sequences, 1, heads, 1, width, VALUES, SCALE, SCALE * math.log2(math.e), pages, page, topk, 0,
        q, kv, ids, None, sink, lse, out, 0, 0, 0, None, None, None,
        heads * width, heads * width, width, 656 * page, 656, topk, topk, heads, heads,
        heads * VALUES, heads * VALUES, VALUES, 0, 0, 0, 0, None, None, None, 0, 0, 0, 0, 0, work, splits, 1,
    )  # fmt: skip
    stored = tensor_map(out.view(sequences, 1, heads, 8, 64), (64, 64, 8, 1, 1), 128, (4, 2, 3, 1, 0))
    maps = packed(heads, width, 1, sequences, tensor_map(q, (64, 64, 1, 1), 128), REST, stored)
    launch(ptx, (2, 1, 1), 384, smem, [parameters, maps], cluster=2)
    keys = torch.cat([numbers.float() * scales.repeat_interleave(128, 1), rope.float()], 1).bfloat16()
    wanted = reference(q[:, 0], keys, ids[:, 0], ids[:, 0] >= 0, sink)
    for got, want in zip((out[:, 0], lse[:, 0]), wanted, strict=False):
        close(got, want, 0.01)


@program
def blackwell_sparse_prefill_two_ctas():
    """Two CTAs share the heads; keys are copied by gather4."""
    ptx, smem = kernel(
        "sm_100a",
        "sm100/prefill/sparse/fwd/head128/instantiations/phase1_k576.cu",
        "sm100::fwd::head128::KernelTemplate<576>::SharedMemoryPlan",
    )

    def maps(q, kv, out):
        return packed(
            128, 576, len(q), tensor_map(q, (64, 64, 1), 128), REST,
            128, VALUES, len(q), tensor_map(out, (64, 64, 1), 128), REST,
            tensor_map(kv, (64, 1), 128),
        )  # fmt: skip

    prefill(ptx, smem, 128, 576, 384, maps, (384, 137), cluster=2, threads=512)


@program
def blackwell_sparse_prefill():
    """The tensor cores take two products at once, with queries in tensor memory."""
    ptx, smem = kernel(
        "sm_100a",
        "sm100/prefill/sparse/fwd/head64/instantiations/phase1_k576.cu",
        "sm100::fwd::head64::SharedMemoryPlan",
    )

    def maps(q, kv, out):
        return packed(
            64, VALUES, len(q), tensor_map(q[..., :VALUES], (64, 64, 1), 128), REST,
            64, 64, len(q), tensor_map(q[..., VALUES:], (32, 64, 1), 64), REST,
            64, VALUES, len(q), tensor_map(out, (64, 64, 1), 128), REST,
            tensor_map(kv[:, :VALUES], (64, 1), 128),
        )  # fmt: skip

    prefill(ptx, smem, 64, 576, 384, maps, (384, 137))


if __name__ == "__main__":
    main()
