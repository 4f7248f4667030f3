"""Solutions over our ops: the JSON, and the results of its source under the names of the definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from dsl_kernels.cli import app
from dsl_kernels.errors import UnknownNameError
from dsl_kernels.problems.layouts import pack_index_keys
from dsl_kernels_lab import solutions

pytestmark = pytest.mark.usefixtures("on_cpu")
ATTENTION, PLAIN_ROWS, INDEXER = solutions.PUBLISHED


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSL_KERNELS_EXECUTOR", "interpreter")


def entry(made: dict[str, Any]) -> Any:
    """The function that a Solution's source defines, found as FlashInfer's builder finds it."""
    (source,) = made["sources"]
    path, name = made["spec"]["entry_point"].split("::")
    assert path == source["path"]
    scope: dict[str, Any] = {}
    exec(compile(source["content"], path, "exec"), scope)
    return scope[name]


@pytest.mark.parametrize(("definition", "page"), [(ATTENTION, 64), (PLAIN_ROWS, 1)])
def test_attention_over_pages_is_the_definitions(definition: str, page: int) -> None:
    torch.manual_seed(3)
    tokens, heads, topk, pages = 3, 16, 128, 512 // page
    q_nope, q_pe = torch.randn(tokens, heads, 512).bfloat16(), torch.randn(tokens, heads, 64).bfloat16()
    ckv, kpe = torch.randn(pages, page, 512).bfloat16(), torch.randn(pages, page, 64).bfloat16()
    ids = torch.stack([torch.randperm(512)[:topk] for _ in range(tokens)]).int()
    ids[1, 50:] = -1
    output, lse = torch.full((tokens, heads, 512), 7.0).bfloat16(), torch.full((tokens, heads), 7.0)
    made = solutions.solution(definition)
    assert made["spec"]["destination_passing_style"] is True
    entry(made)(q_nope, q_pe, ckv, kpe, ids, 0.07, output, lse)
    rows, rope = ckv.view(-1, 512).double(), kpe.view(-1, 64).double()
    for t in range(tokens):
        kept = ids[t][ids[t] >= 0].long()
        scores = 0.07 * (q_nope[t].double() @ rows[kept].T + q_pe[t].double() @ rope[kept].T)
        torch.testing.assert_close(output[t].double(), scores.softmax(1) @ rows[kept], atol=2e-2, rtol=2e-2)
        natural = scores.logsumexp(1)
        torch.testing.assert_close(
            lse[t].double(), natural / torch.log(torch.tensor(2.0)).double(), atol=1e-3, rtol=1e-3
        )


def test_the_indexer_writes_tokens_of_the_largest_scores() -> None:
    torch.manual_seed(4)
    lens, pages, k = [300, 40, 0], 16, 64
    keys = torch.randn(pages, 64, 128)
    cache = pack_index_keys(keys).view(pages, 64, 1, 132).view(torch.int8)
    q = torch.randn(3, 64, 128).to(torch.float8_e4m3fn)
    weights = torch.randn(3, 64)
    table = torch.randperm(pages).int()[:15].view(3, 5)
    got = torch.full((3, k), 7, dtype=torch.int32)
    entry(solutions.solution(INDEXER))(q, cache, weights, torch.tensor(lens, dtype=torch.int32), table, got)
    flat = cache.view(torch.uint8).view(pages, -1)
    values = flat[:, : 64 * 128].reshape(pages, 64, 128).view(torch.float8_e4m3fn).double()
    own = values * flat[:, 64 * 128 :].contiguous().view(torch.float32).double()[..., None]
    for b, length in enumerate(lens):
        tokens = (table[b].long()[:, None] * 64 + torch.arange(64)).view(-1)[:length]
        scores = (weights[b].double()[:, None] * (q[b].double() @ own.view(-1, 128)[tokens].T).relu()).sum(0)
        best = tokens[scores.topk(min(k, length)).indices.sort().values]
        assert got[b].tolist() == [*best.tolist(), *[-1] * (k - len(best))]


def test_selection_is_by_keyword_and_returns() -> None:
    logits = torch.randn(2, 200).half()
    made = solutions.solution("top_k_varlen_n200_k16")
    assert made["spec"]["destination_passing_style"] is False
    got = entry(made)(logits=logits, seq_lens=torch.tensor([200, 9], dtype=torch.int32), top_k=16)
    assert got[0].tolist() == logits[0].float().topk(16).indices.sort().values.tolist()
    assert got[1].tolist() == [*range(9), *[-1] * 7]


def test_a_definition_that_no_op_implements_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="gemm_N128"):
        solutions.write_solutions(tmp_path, (ATTENTION, "gemm_N128"))
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_what_flashinfer_scans(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["solutions", str(tmp_path), "--json"])
    assert done.exit_code == 0
    files = sorted((tmp_path / "solutions").iterdir())
    assert [file.stem for file in files] == sorted(solutions.PUBLISHED)
    for file in files:
        made = json.loads(file.read_text())
        assert made == solutions.solution(file.stem)
