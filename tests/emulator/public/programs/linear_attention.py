"""flash-linear-attention's functions (Triton), against their definitions step by step."""

import torch
from _check import close, gradients, main, program, rand


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def delta_rule(q, k, v, beta, decay=None):
    """S <- a S + b k (v - k S)^T and o = q S, over [batch, time, head]."""
    q, k, v, beta = (x.float() for x in (q, k, v, beta))
    state = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    out = []
    for t in range(q.shape[1]):
        if decay is not None:
            state = state * decay[:, t].float().exp()[..., None, None]
        error = v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * error)
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(out, 1) * q.shape[3] ** -0.5


def heads(time=64, value=64, dtype=torch.bfloat16):
    shape = (1, time, 2)
    return rand(*shape, 64, dtype=dtype), unit(rand(*shape, 64)).to(dtype), rand(*shape, value, dtype=dtype)


@program
def cumulative_sum():
    from fla.ops.utils import chunk_local_cumsum

    x = rand(1, 128, 4)
    close(chunk_local_cumsum(x, 64), x.view(1, 2, 64, 4).cumsum(2).view(1, 128, 4), 1e-5)


@program
def fused_recurrent_delta_rule():
    from fla.ops.delta_rule import fused_recurrent_delta_rule as rule

    q, k, v = heads(16, dtype=torch.float32)
    beta = torch.rand(1, 16, 2, device="cuda")
    close(rule(q, k, v, beta)[0], delta_rule(q, k, v, beta), 1e-3)


@program
def fused_recurrent_gated_delta_rule():
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule as rule

    q, k, v = heads(16, dtype=torch.float32)
    beta, g = torch.rand(1, 16, 2, device="cuda"), -torch.rand(1, 16, 2, device="cuda")
    close(rule(q, k, v, g=g, beta=beta)[0], delta_rule(q, k, v, beta, g), 1e-3)


@program
def chunk_delta_rule():
    from fla.ops.delta_rule import chunk_delta_rule as rule

    q, k, v = heads()
    beta = torch.rand(1, 64, 2, device="cuda").bfloat16()
    close(rule(q, k, v, beta)[0], delta_rule(q, k, v, beta), 0.03)


@program
def chunk_gated_delta_rule():
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule as rule

    q, k, v = heads()
    beta, g = torch.rand(1, 64, 2, device="cuda").bfloat16(), -torch.rand(1, 64, 2, device="cuda")
    close(rule(q, k, v, g=g, beta=beta)[0], delta_rule(q, k, v, beta, g), 0.03)


@program
def chunk_linear_attention():
    from fla.ops.simple_gla import chunk_simple_gla

    q, k, v = heads(64)
    g = -torch.rand(1, 64, 2, device="cuda")
    scores = torch.einsum("bthd,bshd->bhts", q.float(), k.float()) * 64**-0.5
    total = g.cumsum(1).transpose(1, 2)
    weight = (total[..., :, None] - total[..., None, :]).exp().tril()
    close(
        chunk_simple_gla(q, k, v, g=g)[0], torch.einsum("bhts,bshd->bthd", scores * weight, v.float()), 0.03
    )


@program
def retention():
    from fla.ops.retention import fused_recurrent_retention

    q, k, v = heads(16, dtype=torch.float32)
    decay = (1 - torch.exp2(-5.0 - torch.arange(2.0, device="cuda"))).log()
    t = torch.arange(16, device="cuda")
    weight = ((t[:, None] - t[None]) * decay[:, None, None]).exp().tril()
    scores = torch.einsum("bthd,bshd->bhts", q, k) * 64**-0.5
    close(fused_recurrent_retention(q, k, v)[0], torch.einsum("bhts,bshd->bthd", scores * weight, v), 1e-3)


@program
def layer_norm():
    from fla.modules.layernorm import layer_norm as norm

    gradients(
        lambda x, w, b: norm(x, w, b),
        lambda x, w, b: torch.nn.functional.layer_norm(x, (128,), w, b),
        rand(8, 128, grad=True), rand(128, grad=True), rand(128, grad=True), tolerance=1e-3,
    )  # fmt: skip


@program
def rotary():
    from fla.modules.rotary import rotary_embedding

    x = rand(1, 16, 2, 64)
    angles = rand(16, 32)
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :32], x[..., 32:]
    c, s = cos[None, :, None], sin[None, :, None]
    close(rotary_embedding(x, cos, sin), torch.cat([a * c - b * s, a * s + b * c], -1), 1e-4)


if __name__ == "__main__":
    main()
