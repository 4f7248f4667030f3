"""Fuzzing of the public helpers: valid arguments, one or two of them replaced by hostile ones.

Helpers are the functions outside the ops that can be imported without an underscore and that a caller has a
reason to use.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import isgenerator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from . import Counts
from .values import draw, spelled

PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry twice(.param .u64 p)
{
  .reg .b32 %r<3>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.u32 %r2, [%rd3];
  add.s32 %r2, %r2, %r2;
  st.global.u32 [%rd3], %r2;
  ret;
}
"""


Judge = Callable[[Any], Any]


def REFUSED(answer: Any) -> bool:
    """Stands for a judge if this machine lacks what even valid arguments ask for."""
    return False


@dataclass(frozen=True)
class Helper:
    """A function and valid arguments; `right` judges its answer to them."""

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    right: Judge | None = None


def helpers(folder: Path) -> list[Helper]:
    """Every helper, with valid arguments; files go below `folder`."""
    import dsl_kernels
    import ptx_emulator as emulator
    from dsl_kernels import (
        arch,
        dsa,
        env,
        executors,
        expr,
        measured,
        ops,
        prepare,
        problems,
        programs,
        registry,
        variants,
    )
    from dsl_kernels.problems import base, binding, layouts
    from dsl_kernels.runtime import artifact, bundle, cache, launch, pool, prune, store
    from dsl_kernels.tile import describe, plan
    from dsl_kernels_lab import oracles, steps
    from dsl_kernels_lab.layouts import unpack_fp8_tokens, unpack_index_keys
    from dsl_kernels_lab.steps import check as step_check  # fmt: skip
    from dsl_kernels_lab.timing import bench, calibrate, grids, measure
    from dsl_kernels_lab.verification import runs, trial

    gpu = torch.cuda.is_available()
    listed: list[Helper] = []

    def add(name: str, function: Callable[..., Any], right: Judge | None = None, /, **arguments: Any) -> None:
        listed.append(Helper(name, function, arguments, right))

    variant = variants.variants("sparse_mla", arch="sm_90a")[0]
    problem = oracles.get("sparse_mla")
    workload = next(w for w in problem.workloads if w.tier == "tiny" and w.form == "bf16")
    size = steps.StepSize(batch=2, context=130, topk=64, heads=8, index_heads=32)
    drawn = steps.draw(size)[0]
    example = trial.make_example("topk_selector", oracles.get("topk_selector").workloads[0], 0)
    selector = variants.variants("topk_selector", arch="sm_90a")[0]
    dims = {"rows": 4, "stride": 4096, "b": 4, "max_pages": 64, "k": 2048, "next_n": 1, "page_size": 64}
    call = registry.Call("topk_selector", "default", "sm_90a", dims)
    written = folder / "step.safetensors"
    steps.save(drawn, written)
    schedule = programs.get("sparse_mla").schedule(variant.knobs, arch.get_arch("sm_90a"))

    add("arch.get_arch", arch.get_arch, lambda r: r.name == "sm_90a", name="sm90a")
    add(
        "arch.arch_for_capability", arch.arch_for_capability, lambda r: r.name == "sm_100a", major=10, minor=0
    )
    add("expr.names_in", expr.names_in, lambda r: r == {"a", "b"}, text="ceildiv(a, 4) * min(b, 2)")
    add("expr.names_in_all", expr.names_in_all, lambda r: r == {"a", "b"}, texts=["a", "b + 1"])
    add("expr.tuple_text", expr.tuple_text, lambda r: r == "(a, b, )", texts=["a", "b"])
    add(
        "expr.compile_expressions",
        expr.compile_expressions,
        lambda r: r(7) == (9,),
        texts=["a + 2"],
        arguments=["a"],
    )
    add("expr.evaluate", expr.evaluate, lambda r: r == 4, text="ceildiv(a, b)", names={"a": 7, "b": 2})
    add("variants.variants", variants.variants, len, op="sparse_mla", backend="tilelang", arch="sm_90a")
    add("variants.get", variants.get, lambda r: r == variant, variant_id=variant.id)
    add("variants.ids", variants.ids, lambda r: r == [variant.id], of=[variant])
    add("problems.get", problems.get, lambda r: r.op == "sparse_mla", op="sparse_mla")
    add("programs.get", programs.get, lambda r: r.op == "sparse_mla", op="sparse_mla")
    add("Problem.operands", problem.operands, len, form="bf16")
    add("Oracle.workload", problem.workload, lambda r: r == workload, name=workload.name)
    add(
        "binding.bind", binding.bind, lambda r: r.dims["n"] == 5,
        operands=(base.OperandSpec("x", ("n", 512), "float32"),), values={"x": torch.zeros(5, 512)},
        static={},
    )  # fmt: skip
    add(
        "layouts.pack_index_keys",
        layouts.pack_index_keys,
        lambda r: r.shape == (2, 64, 1, 132),
        keys=torch.ones(2, 64, 128),
    )
    add(
        "layouts.unpack_index_keys", unpack_index_keys, lambda r: r[0].shape == (2, 64, 128),
        cache=layouts.pack_index_keys(torch.ones(2, 64, 128)), page_size=64,
    )  # fmt: skip
    add(
        "layouts.pack_fp8_tokens", layouts.pack_fp8_tokens, lambda r: r.shape == (5, 656),
        latent=torch.ones(5, 512), rope=torch.ones(5, 64), raw_scales=False,
    )  # fmt: skip
    add(
        "layouts.unpack_fp8_tokens", unpack_fp8_tokens, lambda r: bool((r[0] == 1).all()),
        tokens=layouts.pack_fp8_tokens(torch.ones(5, 512), torch.ones(5, 64)),
    )  # fmt: skip
    add(
        "registry.Call",
        registry.Call,
        op="topk_selector",
        form="default",
        arch="sm_90a",
        dims=dims,
        gpu="",
        backend=None,
    )
    add(
        "registry.select", registry.select, lambda r: r.variant.op == "topk_selector", call=call, variant=None
    )
    add("registry.explain", registry.explain, lambda r: r.selection, call=call, variant=None, predict=False)
    add("registry.bucket", registry.bucket, len, call=call)
    add("registry.refusal", registry.refusal, call=call, variant=selector)
    add("measured.tuned_table", measured.tuned_table, len, gpu="NVIDIA H200")
    add("measured.slug", measured.slug, lambda r: r == "nvidia_h200", gpu="NVIDIA H200")
    add("steps.StepSize", steps.StepSize, **vars(size))
    add("steps.StepSize.validate", lambda **fields: steps.StepSize(**fields).validate(), **vars(size))
    add("steps.named_size", steps.named_size, lambda r: r.topk == 64, kind="decode", name="tiny")
    add("steps.draw", steps.draw, lambda r: len(r) == 1, size=size, device="cpu", seed=3, sets=1, given=None)
    add(
        "steps.draw sizes", lambda seed, **f: steps.draw(steps.StepSize(**f), seed=seed), seed=0, **vars(size)
    )
    add(
        "steps.StepInputs",
        steps.StepInputs,
        kind="decode",
        tensors=drawn.tensors,
        topk=64,
        sm_scale=0.1,
        lse_base="2",
    )
    for name in drawn.tensors:
        others = {key: tensor for key, tensor in drawn.tensors.items() if key != name}
        add(
            f"steps.StepInputs {name}",
            lambda tensor, name=name, others=others: steps.StepInputs(
                "decode", {**others, name: tensor}, 64
            ).size(),
            tensor=drawn.tensors[name],
        )
    add("steps.save", steps.save, inputs=drawn, path=folder / "saved.safetensors")
    add("steps.load", steps.load, lambda r: r.topk == 64, path=written, size=size, device="cpu", seed=0)
    add(
        "step_check.check",
        step_check.check,
        REFUSED,
        inputs=drawn,
        output=None,
        workspace=ops.Workspace(),
        sample=2,
    )
    add("grids.Point", grids.Point, op="sparse_mla", form="bf16", params={"t": 1})
    add("grids.points", grids.points, len, op="sparse_mla", grid="smoke")
    add("grids.bucket_of", grids.bucket_of, entry={"op": "sparse_mla", "form": "bf16", "bucket": {"t": 1}})
    add(
        "grids.write_tuned", grids.write_tuned, Path.exists, gpu="Some GPU", folder=folder / "more",
        entries=[{"op": "o", "form": "f", "bucket": {"t": 1}, "variant": "v", "launch": {}, "us": {}}],
        environment={},
    )  # fmt: skip
    add("measure.touched_bytes", measure.touched_bytes, lambda r: r > 0, size=size)
    add("measure.pool", measure.pool, lambda r: r.pages == measure.CONTEST_PAGES, size=size)
    add("measure.live_pages", measure.live_pages, lambda r: len(r) == 1, sets=[drawn])
    add("bench.turns", bench.turns, lambda r: r == 64, touched_bytes=1.0, limit=64)
    add("bench.version", bench.version, len, package="torch")
    add("bench.command", bench.command, len, argv=["/x/y", "--a"])
    add("bench.Records", bench.Records, path=folder / "records.jsonl")
    if not gpu:
        bytes_ = torch.zeros(4, 64, dtype=torch.uint8)
        add("bench.graph_time", bench.graph_time, REFUSED, calls=[lambda: None], replays=3)
        add(
            "calibrate.gather",
            calibrate.gather,
            REFUSED,
            cache={"x": bytes_},
            ids=torch.zeros(1, dtype=torch.int32),
            setting=calibrate.SETTINGS[0],
        )
        add("calibrate.read", calibrate.read, REFUSED, buffer=bytes_, setting=calibrate.SETTINGS[0])
        add("measure.step_sets", measure.step_sets, REFUSED, size=size, seed=0)
        add("measure.time_step", measure.time_step, REFUSED, sets=[drawn], baseline=False, parts=False)
        add("measure.time_prompt", measure.time_prompt, REFUSED, inputs=drawn)
        add("measure.logits", measure.logits, REFUSED, inputs=drawn)
        add("grids.prepare", grids.prepare, REFUSED, point=grids.points("sparse_mla", "smoke")[0], seed=0)
    add(
        "trial.workloads",
        lambda variant, tier: trial.workloads(variant, tier),
        len,
        variant=selector,
        tier="tiny",
    )
    add("trial.draw", trial.draw, len, op="sparse_mla", workload=workload, seed=1)
    add(
        "trial.make_example",
        trial.make_example,
        lambda r: r.expected,
        op="sparse_mla",
        workload=workload,
        seed=1,
    )
    add(
        "trial.cached_example", trial.cached_example, lambda r: r.expected, op="sparse_mla", workload=workload
    )
    add(
        "trial.call_of",
        trial.call_of,
        variant=variant,
        workload=workload,
        inputs=trial.draw("sparse_mla", workload, 0),
    )
    add(
        "trial.accepts",
        trial.accepts,
        variant=variant,
        workload=workload,
        inputs=trial.draw("sparse_mla", workload, 0),
        launch=None,
    )
    add(
        "trial.allocate",
        trial.allocate,
        len,
        variant=variant,
        workload=workload,
        inputs=trial.draw("sparse_mla", workload, 0),
        launch=None,
    )
    add(
        "trial.poison",
        trial.poison,
        spec=base.OperandSpec("x", ("n",), "float32", "out"),
        dims={"n": 3},
        device=torch.device("cpu"),
    )
    add("trial.to_device", trial.to_device, len, values={"x": torch.zeros(3), "k": 4}, device="cpu")
    add("trial.on_cpu", trial.on_cpu, len, values={"x": torch.zeros(3), "k": 4})
    add(
        "trial.run", trial.run, lambda r: r.comparison.ok, variant=selector,
        workload=oracles.get("topk_selector").workloads[0], executor=executors.Interpreter(), seed=0,
        device="cpu",
        launch=None, example=example,
    )  # fmt: skip
    add("executors.get", executors.get, lambda r: r.name == "cuda", name="cuda")
    add(
        "executors.for_device",
        executors.for_device,
        lambda r: r == "interpreter",
        device_type="cpu",
        name="interpreter",
    )
    add(
        "executors.Interpreter",
        lambda seed, variant: executors.Interpreter(seed).prepare(variant),
        callable,
        seed=1,
        variant=variant,
    )
    add(
        "prepare.warmup",
        prepare.warmup,
        op="sparse_mla",
        arch="sm_90a",
        device=None,
        jobs=1,
        strict=False,
        progress=None,
    )
    add("use_bundle", dsl_kernels.use_bundle, REFUSED, path=folder / "bundle")
    add("bundle.open_bundle", bundle.open_bundle, REFUSED, path=folder / "bundle")
    add("bundle.require_free", bundle.require_free, target=folder / "free", replace=False)
    add(
        "bundle.write",
        bundle.write,
        REFUSED,
        target=folder / "b",
        chosen=[variant],
        folders={},
        ptx=False,
        replace=False,
    )
    add("launch.load", launch.load, REFUSED, folder=folder / "artifact", verify=True)
    add("artifact.read", artifact.read, REFUSED, folder=folder / "artifact", verify=True)
    add("Artifact.from_json", artifact.Artifact.from_json, REFUSED, text='{"schema": 1}', where="here")
    add("cache.lookup", cache.lookup, module=variant)
    add("cache.artifact_for", cache.artifact_for, REFUSED, module=variant, build=False, retry=False)
    add("store.fetch", store.fetch, REFUSED, variant=variant, file="kernel.ptx")
    add("store.lookup", store.lookup, variant=variant)
    add(
        "pool.compile_all",
        pool.compile_all,
        modules=[variant],
        jobs=1,
        timeout=5.0,
        retry=False,
        started=None,
    )
    add("prune.prune", prune.prune, unused_for=1.0, max_bytes=None, wanted=(), dry_run=True)
    add("runs.of", runs.of, variant=variant, path=None)
    add("runs.summary", runs.summary, lambda r: r == "not run", records=[])
    add(
        "runs.record", runs.record, variant=variant, executor="interpreter", where="CPU", date="2026-01-01",
        workloads=3,
        path=folder / "runs.json", counted=None,
    )  # fmt: skip
    add("describe.describe", describe.describe, len, schedule=schedule, arch=arch.get_arch("sm_90a"))
    add("plan.barrier_plan", plan.barrier_plan, lambda r: r.pipelines, schedule=schedule)
    add("dsa.StepOutput", dsa.StepOutput, out=torch.zeros(1), lse=torch.zeros(1), indices=torch.zeros(1))
    for variable in vars(env).values():
        if isinstance(variable, env.EnvVar):
            add(
                f"env {variable.name}",
                _setting(variable),
                text="1" if variable.default != {} else f"sparse_mla={variant.id}",
            )
    add(
        "emulator.launch", emulator.launch, lambda r: r.ok, ptx=PTX, grid=1, block=32,
        args=[np.zeros(32, np.int32)],
        cluster=None, dynamic_smem=0, interleaving=None, entry="twice", check="raise", roles=None,
        names=["p"],
        registers_per_thread=0, instruction_limit=10_000, max_findings=5,
    )  # fmt: skip
    add(
        "emulator.Interleaving",
        emulator.Interleaving,
        kind="random",
        seed=1,
        async_policy="late",
        slow_warp=0,
        resident=1,
        max_resident=2,
        choices=(1,),
    )
    add("emulator.interleavings", emulator.interleavings, count=3, seed=0, warps=4)
    add("emulator.Interleaving.random", emulator.Interleaving.random, seed=1, resident=1)
    add(
        "emulator.Interleaving.adversarial",
        emulator.Interleaving.adversarial,
        seed=1,
        slow_warp=0,
        async_policy="late",
        resident=1,
    )
    add(
        "emulator.TensorMap",
        _mapped(emulator),
        REFUSED,
        array=np.zeros((64, 64), np.float32),
        box=(16, 16),
        swizzle="none",
        dims=None,
        strides=None,
        fill="zero",
        dtype=None,
        offset=0,
    )
    add("emulator.Struct", _structured(emulator), REFUSED, fields=[np.int32(3), np.float32(1)])
    add(
        "emulator.explore",
        emulator.explore,
        run=lambda interleaving: emulator.launch(
            PTX, 1, 32, [np.zeros(32, np.int32)], interleaving=interleaving
        ),
        limit=2,
    )
    return listed


def _setting(variable: Any) -> Callable[[Any], Any]:
    def read(text: Any) -> Any:
        # A shell can only set text without NUL.
        value = (
            str(text).replace("\0", "")
            if isinstance(text, str | int | float) and abs(_size(text)) < 10**40
            else "x"
        )
        with mock.patch.dict(os.environ, {variable.name: value}):
            return variable.get()

    return read


def _size(value: Any) -> Any:
    return 0 if isinstance(value, str) or value != value else value


def _mapped(emulator: Any) -> Callable[..., Any]:
    return lambda **fields: emulator.launch(PTX, 1, 32, [emulator.TensorMap(**fields)])


def _structured(emulator: Any) -> Callable[..., Any]:
    return lambda **fields: emulator.launch(PTX, 1, 32, [emulator.Struct(**fields)])


@contextlib.contextmanager
def isolated() -> Iterator[Path]:
    """A new working directory with an empty cache, in a process that must not compile.

    Recorded runs and tuned tables that a helper or a command writes go there too.
    """
    from dsl_kernels import measured
    from dsl_kernels_lab.verification import runs

    kept = {key: value for key, value in os.environ.items() if not key.startswith("DSL_KERNELS_")}
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        tuned = folder / "tuned"
        tuned.mkdir()
        for table in measured.TUNED.glob("*.json"):
            (tuned / table.name).write_bytes(table.read_bytes())
        settings = {
            "DSL_KERNELS_DISABLE_JIT": "1", "DSL_KERNELS_CACHE_DIR": str(folder / "cache"), "TERM": "dumb",
        }  # fmt: skip
        with (
            mock.patch.dict(os.environ, {**kept, **settings}, clear=True),
            mock.patch.object(runs, "PATH", folder / "runs.json"),
            mock.patch.object(measured, "TUNED", tuned),
        ):
            yield folder


def fuzz_helpers(count: int, seed: int, only: str = "") -> Counts:
    """Call helpers `count` times, with up to two hostile arguments."""
    from ptx_emulator import BuildError
    from ptx_emulator.build import load

    generator, counts = random.Random(seed), Counts()
    with contextlib.suppress(BuildError):
        load()  # the emulator's core, which an empty cache would compile again
    with isolated() as folder:
        listed = [helper for helper in helpers(folder) if only in helper.name]
        for helper in listed:  # valid and without a time limit, as first uses import and compile
            typed = counts.typed
            counts.call(helper.name, _ended, helper, helper.arguments, expect=_judge(helper), limit_s=60)
            if counts.typed > typed and helper.right is not REFUSED:
                counts.judge(f"{helper.name} refuses what fits", lambda _: False, None)
        for _ in range(max(0, count - len(listed))):
            helper = generator.choice(listed)
            arguments = dict(helper.arguments)
            for name in generator.sample(sorted(arguments), min(len(arguments), generator.choice((1, 1, 2)))):
                arguments[name] = _mutated(arguments[name], generator)
            changed = {k: v for k, v in arguments.items() if v is not helper.arguments[k]}
            label = f"{helper.name}({', '.join(f'{k}={spelled(v)}' for k, v in changed.items())})"
            counts.call(label, _ended, helper, arguments)
    return counts


def _ended(helper: Helper, arguments: Mapping[str, Any]) -> Any:
    """A helper's answer; the first items of a generator."""
    result = helper.function(**arguments)
    return list(itertools.islice(result, 3)) if isgenerator(result) else result


def _judge(helper: Helper) -> Callable[[Any], bool | None] | None:
    right = helper.right
    return None if right is None else lambda answer: bool(right(answer))


def _mutated(value: Any, generator: random.Random) -> Any:
    """Another value, or the same mapping or sequence with one item replaced."""
    if isinstance(value, dict) and value and generator.random() < 0.4:
        return {**value, generator.choice(sorted(value)): draw(generator)}
    if isinstance(value, list | tuple) and value and generator.random() < 0.3:
        return type(value)([draw(generator), *value[1:]])
    return draw(generator, type(value) if generator.random() < 0.4 else object)
