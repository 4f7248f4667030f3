"""DeepSeek-V4's decode step, on the interpreter: what each layer attends to, and refusals."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from dsl_kernels.dsa import v4
from dsl_kernels.errors import ArgumentTypeError, InvalidArgumentError
from dsl_kernels.kernels.sparse_mla.forms import split_pages
from dsl_kernels.problems.layouts import pack_index_keys, pack_v4_pages, pack_v41_pages
from dsl_kernels_lab import oracles

B, NEXT_N, HEADS, INDEX_HEADS, WINDOW, TOPK = 3, 2, 8, 32, 20, 48
LENS = torch.tensor([[700, 701], [9, 10], [0, 300]], dtype=torch.int32)
WINDOW_PAGE, PAGES = 16, 60
PACKED = {
    "v4": pack_v4_pages,
    "v41": pack_v41_pages,
    "v41_planar": partial(pack_v41_pages, planar=True),
}


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def table(b: int, pages: int, most: int, seed: int) -> torch.Tensor:
    order = torch.randperm(most, generator=torch.Generator().manual_seed(seed)).int()
    return order[: b * pages].view(b, pages).contiguous()


def layer(kind: str, row_format: str = "v4") -> dict:
    """A window only, an index over one compressed token per 4, or all compressed tokens, one per 128."""
    pack = PACKED[row_format]
    given = {
        "q": normal(B * NEXT_N, HEADS, 512, seed=1).bfloat16(),
        "kv": pack(normal(B * 44 + 1, WINDOW_PAGE, 512, seed=2).bfloat16()),
        "seq_lens": LENS,
        "window_table": table(B, 44, B * 44 + 1, 3),
        "window": WINDOW,
        "sm_scale": 0.06,
        "attn_sink": normal(HEADS, seed=4),
        "row_format": row_format,
    }
    if kind == "index":
        index = v4.Index(
            normal(B, NEXT_N, INDEX_HEADS, 128, seed=5).to(torch.float8_e4m3fn),
            pack_index_keys(normal(B * 3 + 2, 64, 128, seed=6)),
            normal(B, NEXT_N, INDEX_HEADS, seed=7),
        )
        extra = pack(normal(B * 3 + 2, 64, 512, seed=8).bfloat16())
        given |= {
            "extra_kv": extra,
            "block_table": table(B, 3, B * 3 + 2, 9),
            "ratio": 4,
            "topk": TOPK,
            "index": index,
        }
    elif kind == "all":
        extra = pack(normal(B * 3, 2, 512, seed=8).bfloat16())
        given |= {"extra_kv": extra, "block_table": table(B, 3, B * 3, 9), "ratio": 128, "topk": 64}
    return given


def ids_by_position(positions: torch.Tensor, pages: torch.Tensor, page: int, width: int) -> torch.Tensor:
    ids = torch.full((width,), -1, dtype=torch.int32)
    ids[: len(positions)] = pages[positions // page] * page + (positions % page).int()
    return ids


@pytest.mark.parametrize(
    ("kind", "row_format"),
    [("window", "v4"), ("index", "v4"), ("all", "v4"), ("index", "v41"), ("all", "v41_planar")],
)
def test_a_layer_attends_to_its_window_and_its_compressed_tokens(kind: str, row_format: str) -> None:
    given = layer(kind, row_format)
    output = v4.decode(**given, executor="interpreter", lse_base="e")
    lens = LENS.view(-1).tolist()
    wanted = torch.stack(
        [
            ids_by_position(torch.arange(max(0, n - WINDOW), n), given["window_table"][row // NEXT_N],
                            WINDOW_PAGE, WINDOW)
            for row, n in enumerate(lens)
        ]
    )  # fmt: skip
    assert torch.equal(output.indices, wanted)
    inputs = {
        "q_rows": given["q"],
        "indices": wanted,
        **split_pages("kv", row_format, given["kv"])[1],
    }
    if kind == "window":
        assert output.extra_indices is None
        extra, page, chosen = given["kv"], WINDOW_PAGE, torch.empty(B * NEXT_N, 0, dtype=torch.int32)
    else:
        extra, page = given["extra_kv"], given["extra_kv"].shape[1]
        compressed = LENS // given["ratio"]
        rows = [torch.arange(n) for n in compressed.view(-1).tolist()]
        if kind == "index":
            scoring = oracles.get("lightning_indexer")
            index, pages = given["index"], len(given["index"].k_cache)
            scores = scoring.reference(
                "decode",
                {
                    "q": index.q, "k_cache": index.k_cache, "weights": index.weights, "seq_lens": compressed,
                    "block_table": given["block_table"],
                },
            )["logits"]  # fmt: skip
            assert pages == B * 3 + 2
            scores = scores.reshape(B * NEXT_N, -1)
            rows = [
                r if len(r) <= TOPK else scores[i, : len(r)].float().topk(TOPK).indices.sort().values
                for i, r in enumerate(rows)
            ]
        chosen = torch.stack(
            [
                ids_by_position(r, given["block_table"][i // NEXT_N], page, given["topk"])
                for i, r in enumerate(rows)
            ]
        )
        assert torch.equal(output.extra_indices, chosen)
    inputs |= {
        "extra_indices": chosen,
        **{f"extra_{name}": value for name, value in split_pages("extra_kv", row_format, extra)[1].items()},
        "attn_sink": given["attn_sink"],
        "sm_scale": given["sm_scale"],
        "lse_scale": math.log(2),
    }
    problem = oracles.get("sparse_mla")
    outputs = {"out": output.out, "lse": output.lse}
    form = row_format.removesuffix("_planar")
    result = problem.compare(form, inputs, outputs, problem.reference(form, inputs))
    assert result.ok, result.failures


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_table": None}, "block_table.*a table if extra_kv is given"),
        ({"topk": 3}, "topk.*at least 6, the tokens of all pages in block_table"),
        ({"seq_lens": LENS.view(-1)}, r"seq_lens.*\[b, next_n\]"),
        ({"window": 0}, "window.*1 to 4096"),
        ({"row_format": "fp8"}, "row_format.*'v4', 'v41' or 'v41_planar'.*'fp8'"),
        ({"row_format": "v41"}, r"kv.*528.*584"),
        ({"ratio": 0}, "ratio"),
        ({"window_table": torch.zeros(3, 0, dtype=torch.int32)}, "window_table.*at least one page"),
        ({"extra_kv": torch.zeros(584, dtype=torch.uint8)}, "extra_kv.*584"),
    ],
)
def test_a_step_refuses(change: dict, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        v4.decode(**{**layer("all"), **change}, executor="interpreter")


@pytest.mark.parametrize("name", ["q", "kv", "seq_lens", "window_table", "extra_kv", "block_table"])
def test_what_is_no_tensor_is_refused_by_name(name: str) -> None:
    with pytest.raises(ArgumentTypeError, match=name):
        v4.decode(**{**layer("all"), name: 3}, executor="interpreter")


def test_an_index_needs_pages_as_its_own() -> None:
    given = layer("all")
    index = layer("index")["index"]
    with pytest.raises(InvalidArgumentError, match="extra_kv.*pages of 64 tokens"):
        v4.decode(**given, index=index, executor="interpreter")
