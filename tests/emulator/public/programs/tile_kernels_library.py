"""TileKernels' functions (TileLang), against the package's own references."""

import importlib
import sys

import torch
from _check import close, main, program, rand, same

try:
    import tilelang.utils.target  # noqa: F401
except ModuleNotFoundError:  # TileKernels 1.0.0 was written for a TileLang that had the module there
    sys.modules["tilelang.utils.target"] = importlib.import_module("tilelang.backend.target")

from tile_kernels import moe, quant
from tile_kernels import transpose as transposes
from tile_kernels.torch import mhc as mhc_reference
from tile_kernels.torch import moe as moe_reference
from tile_kernels.torch import topk
from tile_kernels.torch.cast import cast as cast_reference
from tile_kernels.torch.cast import cast_back as cast_back_reference


def equal(got, want):
    for a, b in zip(got, want, strict=True):
        same(
            a.view(torch.uint8) if a.element_size() == 1 else a,
            b.view(torch.uint8) if b.element_size() == 1 else b,
        )


@program
def per_token_cast():
    x = rand(8, 512, dtype=torch.bfloat16)
    equal(quant.per_token_cast(x, "e4m3", 128), cast_reference(x, "e4m3", (1, 128)))


@program
def per_block_cast():
    x = rand(128, 256, dtype=torch.bfloat16)
    equal(quant.per_block_cast(x, "e4m3", (128, 128)), cast_reference(x, "e4m3", (128, 128)))


@program
def cast_back():
    x = quant.per_token_cast(rand(8, 512, dtype=torch.bfloat16), "e4m3", 128)
    same(quant.cast_back(x, "bf16", (1, 128)), cast_back_reference(x, "bf16", (1, 128)))


@program
def transpose():
    x = rand(128, 192, dtype=torch.bfloat16)
    same(transposes.transpose(x), x.T.contiguous())


@program
def topk_gate():
    scores = rand(6, 64)
    same(moe.topk_gate(scores, 6), topk.stable_topk(scores, 6))


@program
def group_count():
    index = torch.randint(0, 16, (40, 4), device="cuda")
    same(moe.group_count(index, 16), moe_reference.group_count(index, 16))


@program
def normalize_weight():
    weights = rand(40, 6).abs()
    for a, b in zip(moe.normalize_weight(weights), moe_reference.normalize_weight(weights), strict=True):
        close(a, b, 1e-5)


@program
def mask_indices():
    index = torch.randint(0, 64, (40, 6), device="cuda")
    same(moe.mask_indices_by_tp(index, 64, 4, 1, 2), moe_reference.mask_indices_by_tp(index, 64, 4, 1, 2))


@program
def sinkhorn():
    from tile_kernels.modeling.mhc.ops import sinkhorn_normalize

    x = rand(6, 4, 4).abs()
    close(sinkhorn_normalize(x), mhc_reference.sinkhorn_normalize_ref(x), 1e-4)


if __name__ == "__main__":
    main()
