"""Cut Cross-Entropy (Triton): the loss and its gradients, against torch's."""

import torch
import torch.nn.functional as F
from _check import close, gradients, main, program, rand
from cut_cross_entropy import linear_cross_entropy


def inputs(grad):
    e = rand(64, 64, dtype=torch.bfloat16, grad=grad)
    return e, rand(512, 64, dtype=torch.bfloat16, grad=grad), torch.randint(0, 512, (64,), device="cuda")


def reference(e, c, target):
    return F.cross_entropy(e.float() @ c.float().T, target)


@program
def loss():
    e, c, target = inputs(False)
    close(linear_cross_entropy(e, c, target), reference(e, c, target), 0.01)


@program
def loss_and_gradients():
    e, c, target = inputs(True)
    ours, theirs = (lambda e, c: linear_cross_entropy(e, c, target)), (lambda e, c: reference(e, c, target))
    gradients(ours, theirs, e, c, tolerance=0.05)


if __name__ == "__main__":
    main()
