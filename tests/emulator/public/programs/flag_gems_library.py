"""FlagGems' kernels (Triton), against torch's."""

import os

import torch
from _check import close, main, program, rand, same

os.environ["GEMS_VENDOR"] = "nvidia"  # else FlagGems looks for nvidia-smi


@program
def mm():
    from flag_gems.ops.mm import mm as product

    a, b = rand(128, 128, dtype=torch.float16), rand(128, 128, dtype=torch.float16)
    close(product(a, b), a.float() @ b.float(), 0.01)


@program
def softmax():
    from flag_gems.ops.softmax import softmax as soft

    x = rand(8, 300)
    close(soft(x, -1), x.softmax(-1), 1e-5)


@program
def cumsum():
    from flag_gems.ops.cumsum import cumsum as sums

    x = rand(4, 3000)
    close(sums(x, 1), x.cumsum(1), 1e-4)


@program
def sort():
    from flag_gems.ops.sort import sort as ordered

    x = torch.randint(-1000, 1000, (4, 500), device="cuda", dtype=torch.int32)
    same(ordered(x)[0], x.sort()[0])


@program
def topk():
    from flag_gems.ops.topk import topk as top

    x = rand(4, 500)
    same(top(x, 8)[0], x.topk(8)[0])


@program
def total():
    from flag_gems.ops.sum import sum as gems_sum

    x = rand(100_000)
    close(gems_sum(x), x.sum(), 1e-4)


if __name__ == "__main__":
    main()
