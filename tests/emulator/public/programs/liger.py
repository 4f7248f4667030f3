"""Liger-Kernel's functions (Triton), forward and backward, against torch's."""

import torch
import torch.nn.functional as F
from _check import close, gradients, main, program, rand
from liger_kernel.transformers import functional as liger


@program
def rms_norm():
    gradients(
        lambda x, w: liger.liger_rms_norm(x, w, 1e-6, in_place=False),
        lambda x, w: F.rms_norm(x, (256,), w, 1e-6),
        rand(6, 256, grad=True), rand(256, grad=True), tolerance=1e-4,
    )  # fmt: skip


@program
def layer_norm():
    gradients(
        lambda x, w, b: liger.liger_layer_norm(x, w, b, 1e-6),
        lambda x, w, b: F.layer_norm(x, (256,), w, b, 1e-6),
        rand(6, 256, grad=True), rand(256, grad=True), rand(256, grad=True), tolerance=1e-4,
    )  # fmt: skip


@program
def group_norm():
    gradients(
        lambda x, w, b: liger.liger_group_norm(x, w, b, 8, 4, 1e-6),
        lambda x, w, b: F.group_norm(x, 4, w, b, 1e-6),
        rand(2, 8, 32, grad=True), rand(8, grad=True), rand(8, grad=True), tolerance=1e-3,
    )  # fmt: skip


@program
def cross_entropy():
    target = torch.randint(0, 500, (8,), device="cuda")
    gradients(
        lambda x: liger.liger_cross_entropy(x, target), lambda x: F.cross_entropy(x, target),
        rand(8, 500, grad=True),
        tolerance=1e-4,
    )  # fmt: skip


@program
def fused_linear_cross_entropy():
    target = torch.randint(0, 300, (8,), device="cuda")
    gradients(
        lambda x, w: liger.liger_fused_linear_cross_entropy(x, w, target),
        lambda x, w: F.cross_entropy(x @ w.T, target),
        rand(8, 64, grad=True), rand(300, 64, grad=True), tolerance=1e-3,
    )  # fmt: skip


@program
def swiglu():
    gradients(
        liger.liger_swiglu, lambda a, b: F.silu(a) * b, rand(4, 300, grad=True), rand(4, 300, grad=True),
        tolerance=1e-4
    )  # fmt: skip


@program
def geglu():
    gradients(
        liger.liger_geglu, lambda a, b: F.gelu(a, approximate="tanh") * b, rand(4, 300, grad=True),
        rand(4, 300, grad=True),
        tolerance=1e-4,
    )  # fmt: skip


@program
def softmax():
    gradients(liger.liger_softmax, lambda x: x.softmax(-1), rand(5, 300, grad=True), tolerance=1e-4)


@program
def kl_div():
    target = rand(6, 200).softmax(-1)
    gradients(
        lambda x: liger.liger_kl_div(x, target, reduction="batchmean"),
        lambda x: F.kl_div(x, target, reduction="batchmean"),
        rand(6, 200).log_softmax(-1).requires_grad_(), tolerance=1e-4,
    )  # fmt: skip


@program
def total_variation():
    q = rand(6, 200).softmax(-1)
    gradients(
        lambda p: liger.liger_tvd(p, q, reduction="batchmean"),
        lambda p: 0.5 * (p - q).abs().sum() / 6,
        rand(6, 200).softmax(-1).requires_grad_(), tolerance=1e-4,
    )  # fmt: skip


@program
def dynamic_tanh():
    gradients(
        liger.liger_dyt,
        lambda x, a, g, b: g * torch.tanh(a * x) + b,
        rand(6, 128, grad=True), rand(1, grad=True), rand(128, grad=True), rand(128, grad=True),
        tolerance=1e-3,
    )  # fmt: skip


@program
def relu_squared():
    gradients(liger.liger_relu_squared, lambda x: F.relu(x) ** 2, rand(5, 200, grad=True), tolerance=1e-5)


@program
def fused_add_rms_norm():
    x, r, w = rand(6, 256), rand(6, 256), rand(256)
    got, total = liger.liger_fused_add_rms_norm(x.clone(), r.clone(), w, 1e-6)
    close(total, x + r, 1e-6)
    close(got, F.rms_norm(x + r, (256,), w, 1e-6), 1e-4)


@program
def rope():
    q, k = rand(1, 4, 8, 64), rand(1, 2, 8, 64)
    angles = rand(1, 8, 32)
    cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))

    def rotated(x):
        a, b = x[..., :32], x[..., 32:]
        return x * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None]

    want = rotated(q), rotated(k)
    got = liger.liger_rope(q.clone(), k.clone(), cos, sin)
    for a, b in zip(got, want, strict=True):
        close(a, b, 1e-5)


@program
def sparsemax():
    x = rand(5, 100)
    ordered, _ = x.sort(-1, descending=True)
    sums, ranks = ordered.cumsum(-1), torch.arange(1, 101, device="cuda")
    support = (1 + ranks * ordered > sums).sum(-1, keepdim=True)
    tau = (sums.gather(-1, support - 1) - 1) / support
    close(liger.liger_sparsemax(x), (x - tau).clamp_min(0), 1e-4)


if __name__ == "__main__":
    main()
