"""What the programs of this folder share: inputs on the device,
and comparisons that end a program on a wrong result."""

import sys

import torch

_PROGRAMS = {}


def program(function):
    """Registers a function, which `python FILE NAME` runs."""
    _PROGRAMS[function.__name__] = function
    return function


def rand(*shape, dtype=torch.float32, scale=1.0, grad=False):
    x = (torch.randn(*shape, device="cuda") * scale).to(dtype)
    return x.requires_grad_(grad)


def close(got, want, tolerance):
    """Require the largest difference to be within `tolerance` of the largest value."""
    got, want = got.detach().float().cpu(), want.detach().float().cpu()
    if got.shape != want.shape:
        raise SystemExit(f"the shape is {tuple(got.shape)}, expected {tuple(want.shape)}")
    worst, size = (got - want).abs().max().item(), want.abs().max().item()
    if not worst <= tolerance * max(size, 1e-6):
        raise SystemExit(f"wrong by {worst:.3g} of {size:.3g}")


def same(got, want):
    """Require bitwise equality."""
    if not torch.equal(got.detach().cpu(), want.detach().cpu()):
        raise SystemExit("the result differs")


def gradients(function, reference, *inputs, tolerance):
    """Compare a function and its backward pass with a reference's."""
    ours = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    theirs = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    got, want = function(*ours), reference(*theirs)
    close(got, want, tolerance)
    upstream = torch.randn(want.shape, device="cuda").to(want.dtype)
    got.backward(upstream)
    want.backward(upstream)
    for a, b in zip(ours, theirs, strict=True):
        if a.requires_grad:
            close(a.grad, b.grad, tolerance)


def main():
    torch.manual_seed(0)
    _PROGRAMS[sys.argv[1]]()
    sys.stdout.write("right\n")
