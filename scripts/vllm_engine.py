"""Run vLLM's engine with our backend and with its own, on a small DeepSeek-V3.2 with random weights.

    python scripts/vllm_engine.py compare --out docs/vllm_engine.json

Needs vLLM 0.33, `dsl_kernels` installed beside it, and a Hopper GPU; no model is downloaded. Each engine is a
process of its own, with CUDA graphs. The engines get the same prompts, longer and shorter than the indexer's
selection, and decode greedily. It reports

- how many tokens are the same from the first on, and by how much the log probabilities of these differ;
- the error of these log probabilities against a float32 model over the same tokens, for contexts that the
  indexer selects whole (the float32 model attends to everything);
- whether a second run of an engine gives the same bits;
- the time of a decode step of a model with as many layers as DeepSeek-V3.2, at several batch sizes;
- what DeepSeek-V4's attention layer gives and takes in both (vllm_v4.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import vllm_v4
from rich.console import Console

OURS, THEIRS = "DSLKERNELS_MLA_SPARSE", "FLASHMLA_SPARSE"
CACHES = ("bfloat16", "fp8_ds_mla")
DEVICE = "cuda"
LATENT, ROPE, NOPE, VALUE, LORA, HIDDEN, INNER, VOCAB, TOPK = 512, 64, 128, 128, 512, 1024, 2048, 4096, 2048
INDEX_HEADS, INDEX_DIM, EPS, THETA = 64, 128, 1e-6, 10000.0
MAX_LEN = 8192
LENGTHS = (1, 5, 37, 700, 1500, 2047, 2048, 2049, 3000, 5000, 8000)
"""Tokens of the prompts: around the 2,048 that the indexer selects, and no multiples of a page."""
DECODED = 24
HEADS, LAYERS = (16, 128), 3
HEADS_TIMED, LAYERS_TIMED, BATCHES, CONTEXT, STEPS = 16, 61, (1, 16), 8000, (16, 112)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console()


def config(heads: int, layers: int) -> dict[str, Any]:
    """The model's config.json: attention and indexer as DeepSeek-V3.2's, dense layers, few other dims."""
    return {
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": VOCAB,
        "q_lora_rank": LORA,
        "kv_lora_rank": LATENT,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": VALUE,
        "index_n_heads": INDEX_HEADS,
        "index_head_dim": INDEX_DIM,
        "index_topk": TOPK,
        "first_k_dense_replace": layers,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 256,
        "hidden_act": "silu",
        "rms_norm_eps": EPS,
        "max_position_embeddings": 2 * MAX_LEN,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
        "dtype": "bfloat16",
    }


def weights(heads: int, layers: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Random bf16 weights of the model, by name, on the GPU; a product keeps the scale of its operand."""
    generator = torch.Generator(DEVICE).manual_seed(0)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        drawn = torch.randn(rows, columns, generator=generator, device=DEVICE)
        return (drawn * (gain * columns**-0.5)).bfloat16()

    def norm(dim: int) -> torch.Tensor:
        return (1 + 0.1 * torch.randn(dim, generator=generator, device=DEVICE)).bfloat16()

    yield "model.embed_tokens.weight", matrix(VOCAB, HIDDEN, HIDDEN**0.5)
    yield "model.norm.weight", norm(HIDDEN)
    yield "lm_head.weight", matrix(VOCAB, HIDDEN, 3.0)
    for layer in range(layers):
        for name, of in (
            ("input_layernorm", norm(HIDDEN)),
            ("post_attention_layernorm", norm(HIDDEN)),
            ("mlp.gate_proj", matrix(INNER, HIDDEN)),
            ("mlp.up_proj", matrix(INNER, HIDDEN)),
            ("mlp.down_proj", matrix(HIDDEN, INNER)),
            ("self_attn.q_a_proj", matrix(LORA, HIDDEN)),
            ("self_attn.q_a_layernorm", norm(LORA)),
            # The gains make attention uneven and its output count beside the residual stream.
            ("self_attn.q_b_proj", matrix(heads * (NOPE + ROPE), LORA, 2.0)),
            ("self_attn.kv_a_proj_with_mqa", matrix(LATENT + ROPE, HIDDEN)),
            ("self_attn.kv_a_layernorm", norm(LATENT)),
            ("self_attn.kv_b_proj", matrix(heads * (NOPE + VALUE), LATENT)),
            ("self_attn.o_proj", matrix(HIDDEN, heads * VALUE, 2.0)),
            ("self_attn.indexer.wq_b", matrix(INDEX_HEADS * INDEX_DIM, LORA)),
            ("self_attn.indexer.wk", matrix(INDEX_DIM, HIDDEN)),
            ("self_attn.indexer.weights_proj", matrix(INDEX_HEADS, HIDDEN)),
            ("self_attn.indexer.k_norm", norm(INDEX_DIM).float()),
        ):
            yield f"model.layers.{layer}.{name}.weight", of
        yield f"model.layers.{layer}.self_attn.indexer.k_norm.bias", torch.zeros(INDEX_DIM)


def write_model(folder: Path, heads: int, layers: int) -> None:
    """Write config.json and the checkpoint."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config(heads, layers)))
    save_file({k: v.cpu() for k, v in weights(heads, layers)}, folder / "model.safetensors", {"format": "pt"})


def prompts(lengths: Sequence[int]) -> list[list[int]]:
    """Random tokens, the same in every process."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(2, VOCAB, (n,), generator=generator).tolist() for n in lengths]


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def _rope(x: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of neighbours of [tokens, ..., 64] by their position."""
    rates = THETA ** (-torch.arange(0, ROPE, 2, device=x.device) / ROPE)
    angle = torch.arange(x.shape[0], device=x.device)[:, None] * rates
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    phase = torch.polar(torch.ones_like(angle), angle).view(x.shape[0], *(1,) * (x.dim() - 2), -1)
    return torch.view_as_real(turned * phase).flatten(-2)


@torch.inference_mode()
def reference(model: dict[str, torch.Tensor], heads: int, tokens: list[int]) -> torch.Tensor:
    """Log probabilities [tokens, vocabulary] by float32 products; each token attends to all before it."""
    x = model["model.embed_tokens.weight"][torch.tensor(tokens, device=DEVICE)]
    unseen = torch.ones(len(tokens), len(tokens), dtype=torch.bool, device=DEVICE).triu(1)
    for layer in range(LAYERS):
        w = {
            k.split(f"layers.{layer}.")[1]: v
            for k, v in model.items()
            if k.startswith(f"model.layers.{layer}.")
        }
        h = _norm(x, w["input_layernorm.weight"])
        q = _norm(h @ w["self_attn.q_a_proj.weight"].T, w["self_attn.q_a_layernorm.weight"])
        q = (q @ w["self_attn.q_b_proj.weight"].T).unflatten(-1, (heads, NOPE + ROPE))
        latent, key = (h @ w["self_attn.kv_a_proj_with_mqa.weight"].T).split([LATENT, ROPE], -1)
        latent = _norm(latent, w["self_attn.kv_a_layernorm.weight"])
        up = w["self_attn.kv_b_proj.weight"].view(heads, NOPE + VALUE, LATENT)
        k = torch.einsum("tl,hdl->thd", latent, up)
        scores = torch.einsum("qhd,khd->hqk", q[..., :NOPE], k[..., :NOPE])
        scores += torch.einsum("qhd,kd->hqk", _rope(q[..., NOPE:]), _rope(key))
        shares = (scores * (NOPE + ROPE) ** -0.5).masked_fill(unseen, -torch.inf).softmax(-1)
        out = torch.einsum("hqk,khd->qhd", shares, k[..., NOPE:]).flatten(1)
        x = x + out @ w["self_attn.o_proj.weight"].T
        h = _norm(x, w["post_attention_layernorm.weight"])
        inner = torch.nn.functional.silu(h @ w["mlp.gate_proj.weight"].T) * (h @ w["mlp.up_proj.weight"].T)
        x = x + inner @ w["mlp.down_proj.weight"].T
    return (_norm(x, model["model.norm.weight"]) @ model["lm_head.weight"].T).log_softmax(-1)


@app.command(hidden=True)
def engine(folder: Path, backend: str, cache: str, out: Path, timed: bool = False) -> None:
    """One engine: decode the prompts twice, or time its steps; write what came as JSON."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        max_model_len=MAX_LEN,
        max_num_batched_tokens=MAX_LEN,
        max_num_seqs=max(BATCHES),
        # Engines share the GPU: the cache has a size of its own, whatever else is in use.
        gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=(48 if timed else 4) << 30,
        kv_cache_dtype=cache,
        attention_backend=backend,
        # A timed prompt is prefilled once; a checked one, each time.
        enable_prefix_caching=timed,
        seed=0,
    )

    def decode(lengths: Sequence[int], tokens: int, **asked: Any) -> list[Any]:
        how = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, **asked)
        given = [{"prompt_token_ids": each} for each in prompts(lengths)]
        return [each.outputs[0] for each in llm.generate(given, how, use_tqdm=False)]

    def seconds(batch: int, tokens: int) -> float:
        start = time.perf_counter()
        decode((CONTEXT,) * batch, tokens)
        return time.perf_counter() - start

    if timed:
        # The prompts' prefill is in no time, and what is left of them is in both.
        seconds(max(BATCHES), 4)
        few, many = STEPS
        result: Any = {
            str(batch): [1e3 * (seconds(batch, many) - seconds(batch, few)) / (many - few) for _ in range(3)]
            for batch in BATCHES
        }
    else:
        result = [
            [
                [
                    list(each.token_ids),
                    [at[t].logprob for at, t in zip(each.logprobs, each.token_ids, strict=True)],
                ]
                for each in decode(LENGTHS, DECODED, logprobs=0)
            ]
            for _ in range(2)
        ]
    out.write_text(json.dumps(result))


class Engine:
    """An engine in a process of its own, which writes its output to a file."""

    def __init__(self, model: Path, backend: str, cache: str, *options: str) -> None:
        self.out = model.parent / f"{model.name}_{cache}_{backend}.json"
        self.log = self.out.with_suffix(".log")
        command = [sys.executable, __file__, "engine", str(model), backend, cache, str(self.out), *options]
        environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def finished(self) -> Any:
        """Wait; what the engine wrote, or an error with the end of its output."""
        self.process.wait()
        if not self.out.exists():
            end = self.log.read_text(errors="replace").splitlines()[-30:]
            raise RuntimeError(f"{self.log.name}:\n" + "\n".join(end))
        return json.loads(self.out.read_text())

    def refused(self) -> list[str]:
        """What the plugin logged that it leaves to vLLM."""
        said = self.log.read_text(errors="replace").splitlines()
        return [line for line in said if "dsl_kernels does not" in line or "dsl_kernels leaves" in line]


def _same(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens are the same from the first on."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def compared(heads: int, ours: Any, theirs: Any) -> dict[str, Any]:
    """One row: both backends over the tokens that they have in common, and each beside its second run.

    A run is a list of [tokens, log probabilities], one of each prompt.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    model = {k: v.to(DEVICE).float() for k, v in weights(heads, LAYERS)}
    apart, error = [], {"ours": [], "theirs": []}  # type: tuple[list[float], dict[str, list[float]]]
    for prompt, (tokens, mine), (others, their) in zip(prompts(LENGTHS), ours[0], theirs[0], strict=True):
        alike = _same(tokens, others)
        apart += [abs(x - y) for x, y in zip(mine[:alike], their[:alike], strict=True)]
        if alike and len(prompt) + DECODED <= TOPK:
            wanted = reference(model, heads, prompt + tokens[: alike - 1])[len(prompt) - 1 :]
            picked = wanted.gather(1, torch.tensor(tokens[:alike], device=DEVICE)[:, None])[:, 0].tolist()
            error["ours"] += [abs(x - y) for x, y in zip(mine[:alike], picked, strict=True)]
            error["theirs"] += [abs(x - y) for x, y in zip(their[:alike], picked, strict=True)]
    return {
        "tokens": sum(len(tokens) for tokens, _ in ours[0]),
        "same": len(apart),
        "apart": _spread(apart),
        "tokens_with_reference": len(error["ours"]),
        "error": {who: _spread(of) for who, of in error.items()},
        "same_again": {
            who: sum(_same(a, b) for (a, _), (b, _) in zip(*run, strict=True))
            for who, run in (("ours", ours), ("theirs", theirs))
        },
        "repeats": {"ours": ours[0] == ours[1], "theirs": theirs[0] == theirs[1]},
    }


def _spread(of: Sequence[float]) -> dict[str, float]:
    return {"mean": sum(of) / max(1, len(of)), "most": max(of, default=0.0)}


def checked_rows(work: Path) -> Iterator[dict[str, Any]]:
    """A row for each number of heads and cache; all engines run at once."""
    started = {}
    for heads, cache in product(HEADS, CACHES):
        model = work / f"heads{heads}"
        if not model.exists():
            write_model(model, heads, LAYERS)
        for backend in (OURS, THEIRS):
            started[heads, cache, backend] = Engine(model, backend, cache)
    for heads, cache in product(HEADS, CACHES):
        ours, theirs = (started[heads, cache, backend].finished() for backend in (OURS, THEIRS))
        refused = started[heads, cache, OURS].refused()
        yield {"heads": heads, "cache": cache, **compared(heads, ours, theirs), "refused": refused}


def timed_rows(work: Path) -> Iterator[dict[str, Any]]:
    """The step of each batch size and cache, in ms: engines one after the other on an idle GPU."""
    model = work / "timed"
    write_model(model, HEADS_TIMED, LAYERS_TIMED)
    for cache in CACHES:
        times = {
            who: Engine(model, backend, cache, "--timed").finished()
            for who, backend in (("ours", OURS), ("theirs", THEIRS))
        }
        for batch in BATCHES:
            ms = {who: times[who][str(batch)] for who in times}
            sizes = {"layers": LAYERS_TIMED, "heads": HEADS_TIMED, "cache": cache, "batch": batch}
            yield {**sizes, "context": CONTEXT, **ms}


def commit() -> str:
    """The checkout's commit, with a + where files were changed.

    The laboratory, which can say it too, need not be installed beside vLLM.
    """
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=12", "--dirty=+"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


PARTS = {"checked": checked_rows, "timed": timed_rows} | {
    package: partial(vllm_v4.layer_rows, package) for package in vllm_v4.MODELS
}


@app.command()
def compare(
    out: Annotated[Path | None, typer.Option(help="The results as JSON; parts that do not run stay.")] = None,
    part: Annotated[str | None, typer.Option(help=f"{', '.join(PARTS)}; by default all.")] = None,
) -> None:
    """Check engines of every number of heads and cache, time a deep model, try layers of V4 and V4.1."""
    from importlib.metadata import version

    where = {
        "gpu": torch.cuda.get_device_name(),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "vllm": version("vllm"),
        "torch": torch.__version__,
    }
    result: dict[str, Any] = json.loads(out.read_text()) if out is not None and out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in [part] if part is not None else PARTS:
            result[name] = {**where, "rows": []}
            for row in PARTS[name](Path(folder)):
                result[name]["rows"].append(row)
                # What came is kept if a later engine fails.
                if out is not None:
                    out.write_text(json.dumps(result, indent=1) + "\n")
    console.print_json(data=result)


if __name__ == "__main__":
    app()
