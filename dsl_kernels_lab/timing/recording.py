"""`bench --record`: time operations, steps and prompts beside the installed peers, into one file per commit.

A run writes the file after each point, so that it may end at any time; the same command continues there. A
point at which the process died twice, because of a peer perhaps, is timed without peers.
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from dsl_kernels import ops, registry
from dsl_kernels.arguments import checked
from dsl_kernels.errors import DslKernelError, ExecutorUnavailableError, WrongResultError
from dsl_kernels_lab import steps
from dsl_kernels_lab.steps import check

from . import bench, grids, measure, peers, results
from .results import PeerTime, Results, Row, Run

# After this many runs that died at a point, the point is timed without peers.
MOST_ENDED = 2
# Where a call takes at least this long, each contender also runs back to back for this time.
SUSTAINED_FROM_US, SUSTAINED_SECONDS = 300.0, 0.4
# Steps and prompts consist of points of the operations: the page adds up the peers' times of these.
STEP_BATCHES, STEP_CONTEXTS = (1, 4, 16, 64), (32768, 131072)
PROMPT_ROWS, PROMPT_CONTEXTS = 4096, (32768, 131072)
STEP_HEADS = 16
V4 = {"topk": 128, "extra_topk": 512}


@dataclass(frozen=True)
class Item:
    """The subject of a row: a point of an operation, or the sizes of a step."""

    section: str
    op: str
    form: str
    params: Mapping[str, Any]

    @property
    def point(self) -> str:
        """Form and sizes, as `bench` writes them."""
        return grids.Point(self.op, self.form, self.params).name

    @property
    def key(self) -> str:
        return f"{self.section} {self.op} {self.point}"


def _attention() -> Iterator[tuple[str, dict[str, Any]]]:
    few: tuple[int, ...] = (1, 16, 64, 128)
    many: tuple[int, ...] = (1, 4, 16, 64, 96, 128)
    for heads, counts in ((16, (1, 4, 16, 64, 128)), (64, many), (128, many)):
        yield from (("bf16", {"t": t, "heads": heads, "pages": 4096}) for t in counts)
    many = (1, 4, 5, 64, 128)
    for heads, counts in ((16, few), (64, many), (128, many)):
        yield from (("fp8", {"t": t, "heads": heads, "pages": 4096}) for t in counts)
    for heads, t in product((16, 64, 128), (1, 16, 64)):
        yield "v4", {"t": t, "heads": heads, "pages": 4096, **V4}
    yield from (
        ("nope", {"t": t, "heads": heads, "pages": 4096}) for heads, t in product((64, 128), (64, 128))
    )
    for form, heads, pages in (("bf16", 16, 2048), ("bf16", 128, 512), ("bf16", 128, 2048), ("fp8", 64, 512)):
        yield form, {"t": 4096, "heads": heads, "pages": pages}


def _scoring() -> Iterator[tuple[str, dict[str, Any]]]:
    for b, length in (*product((1, 16, 64), (4096, 32768, 131072)), (4, 32768), (4, 131072)):
        yield "decode", {"b": b, "len": length, "heads": 64, "next_n": 1}
    yield from (("prefill", {"s": PROMPT_ROWS, "skv": skv, "heads": 64}) for skv in PROMPT_CONTEXTS)


def _selection() -> Iterator[tuple[str, dict[str, Any]]]:
    sizes = (
        *product((1, 16, 64), (4096, 32768, 131072)), (4, 32768), (4, 131072), (128, 131072), (64, 1 << 20),
        (4096, 32768), (4096, 131072),
    )  # fmt: skip
    yield from (("default", {"rows": rows, "len": length, "k": 2048}) for rows, length in sizes)


def _dense() -> Iterator[tuple[str, dict[str, Any]]]:
    for form, causal in product(("fp16", "bf16"), (0, 1)):
        yield form, _heads(4, 4096, 64, causal)
    yield from (("bf16", _heads(*sizes, 1)) for sizes in ((2, 3000, 24), (1, 20000, 40)))
    yield from (("bf16", _heads(4, 4096, 64, causal, dim=64)) for causal in (0, 1))


def _heads(b: int, n: int, heads: int, causal: int, dim: int = 128) -> dict[str, Any]:
    return {"b": b, "sq": n, "skv": n, "heads": heads, "kv_heads": 8, "dim": dim, "causal": causal}


def _resampling() -> Iterator[tuple[str, dict[str, Any]]]:
    for b, n, m, d in ((64, 4096, 1024, 32), (512, 4096, 1024, 32), (1, 100_000, 4096, 64)):
        yield "default", {"b": b, "n": n, "m": m, "d": d}


POINTS: dict[str, tuple[str, Callable[[], Iterator[tuple[str, dict[str, Any]]]]]] = {
    "attention": ("sparse_mla", _attention),
    "scoring": ("lightning_indexer", _scoring),
    "selection": ("topk_selector", _selection),
    "dense": ("gqa_forward", _dense),
    "resampling": ("resample_trajectories", _resampling),
}


@checked
def items(op: str | None = None, pattern: str = "") -> list[Item]:
    """The items of a run, in order.

    Args:
        op: Only those of this operation.
        pattern: Only those whose section and point match this regular expression.
    """
    whole = [
        Item(section, name, form, params)
        for section, (name, points) in POINTS.items()
        for form, params in points()
    ]
    whole += [
        Item("step", "decode", "bf16", {"batch": batch, "context": context, "heads": STEP_HEADS})
        for context, batch in product(STEP_CONTEXTS, STEP_BATCHES)
    ]
    whole += [
        Item("prompt", "prefill", "bf16", {"rows": PROMPT_ROWS, "context": context})
        for context in PROMPT_CONTEXTS
    ]
    return [
        item for item in whole if op in (None, item.op) and re.search(pattern, f"{item.section} {item.point}")
    ]


@dataclass
class Session:
    """State that the points of a run share: the reasons why peers are absent, and ceilings by shape."""

    absent: dict[str, str] = field(default_factory=dict)
    ceilings: dict[Any, float | None] = field(default_factory=dict)
    with_peers: bool = True


def measured(item: Item, session: Session, run: int = 0) -> Row:
    """Measure the row of an item.

    Raises:
        WrongResultError: our result differs from the reference.
        DslKernelError: our call cannot run.
    """
    if item.section == "step":
        return _step(item, run)
    if item.section == "prompt":
        return _prompt(item, run)
    point = grids.Point(item.op, item.form, item.params)
    fixture = grids.prepare(point)
    selection = registry.select(grids.call_of(point, fixture))
    ours = fixture.calls(None, None)
    notes: list[str] = []
    # Peers are compared with the outputs of the first turn.
    grids.check_variant(point, fixture)
    ours[0]()
    contenders = {}
    if session.with_peers:
        contenders = {
            name: (contender, far)
            for name, contender, far in peers.standing(point, fixture, ours, session.absent, notes)
        }
    else:
        notes.append("no peers: runs ended here with them")
    failed: dict[str, str] = {}
    times = bench.in_turns(
        {"": ours, **{name: contender.calls for name, (contender, _) in contenders.items()}}, failed=failed
    )
    if "" not in times:
        raise ExecutorUnavailableError(
            item.key,
            expected="a call that a CUDA graph holds",
            got=failed[""],
            fix="run `verify` for its variant",
        )
    notes += [f"{name}: {reason}" for name, reason in failed.items()]
    sides = tuple(
        PeerTime(name, contender.version, statistics.median(times[name]), tuple(times[name]), far)
        for name, (contender, far) in contenders.items()
        if name in times
    )
    row = Row(
        item.section, item.op, item.form, item.point, _kernels([selection]), statistics.median(times[""]),
        tuple(times[""]), sides, clocks=bench.clocks(), run=run,
    )  # fmt: skip
    if row.us >= SUSTAINED_FROM_US:
        calls = {name: contender.calls for name, (contender, _) in contenders.items()}
        row = _on_end(row, ours, calls)
    return replace(row, ceiling_us=_ceiling(point, fixture, session, notes), notes=tuple(notes))


def _on_end(row: Row, ours: Sequence[bench.Call], calls: Mapping[str, Sequence[bench.Call]]) -> Row:
    """Add the times of back-to-back calls, of ours and of the fastest peer.

    The order is peer, ours, ours, peer, because a later run finds a warmer chip.
    """
    peer = row.fastest
    order: list[tuple[PeerTime | None, Sequence[bench.Call]]] = [(None, ours)]
    if peer is not None:
        theirs_too = (peer, calls[peer.name])
        order = [theirs_too, (None, ours), (None, ours), theirs_too]
    timings = [(who, bench.sustained(turns, seconds=SUSTAINED_SECONDS)) for who, turns in order]
    mine = [timing for who, timing in timings if who is None]
    theirs = [timing["us"] for who, timing in timings if who is not None]
    clocks = {name: mine[0][name] for name in bench.CLOCKS if name in mine[0]} or row.clocks
    sides = row.peers
    if peer is not None:
        us = statistics.mean(theirs)
        sides = tuple(replace(s, sustained_us=us) if s.name == peer.name else s for s in sides)
    return replace(
        row, peers=sides, clocks=clocks, sustained_us=statistics.mean(timing["us"] for timing in mine)
    )


def _kernels(selections: Sequence[registry.Selection]) -> dict[str, str]:
    return {chosen.variant.id: results.fingerprint(chosen.variant.id) for chosen in selections}


# From this many queries on, the rows stay in the L2, and fetching them is no ceiling of a call.
PROMPT = 1024


def _ceiling(point: grids.Point, fixture: grids.Fixture, session: Session, notes: list[str]) -> float | None:
    """Microseconds to fetch a point's bytes; for resampling, of a copy that reads half and writes half."""
    if point.op == "resample_trajectories":
        half, turns = max(1, int(fixture.bytes) // 2), bench.turns(fixture.bytes)
        pairs = [torch.zeros(2, half, dtype=torch.uint8, device=measure.DEVICE) for _ in range(turns)]
        return bench.graph_time([partial(to.copy_, source) for source, to in pairs]).us
    if fixture.ceiling is None or point.params.get("t", 0) >= PROMPT:
        return None
    heads = ("heads",) if point.op == "sparse_mla" else ()
    key = (point.op, point.form, *(value for name, value in point.params.items() if name not in heads))
    if key not in session.ceilings:
        figures: dict[str, Any] = {"notes": notes}
        session.ceilings[key] = measure.time_ceiling(fixture.ceiling, figures)
    return session.ceilings[key]


def _step(item: Item, run: int) -> Row:
    p = item.params
    sets = measure.step_sets(steps.StepSize(batch=p["batch"], context=p["context"], heads=p["heads"]))
    kernels = _checked_step(item, sets[0])
    figures = measure.time_step(sets, baseline=False)
    ops_us, limits = figures["ops"], figures["ceilings"]
    parts = {
        "scoring": ops_us["lightning_indexer"],
        "selection": ops_us["topk_selector"],
        "attention": ops_us["sparse_mla"],
        "attention adds": figures["marginal"],
        "page read": limits["read"],
        "gather": limits["gather"],
    }
    us = figures["step"]["us"]
    return Row(
        item.section, item.op, item.form, item.point, kernels, us, (us,), parts=parts, clocks=bench.clocks(),
        run=run, notes=tuple(figures["notes"]),
    )  # fmt: skip


def _prompt(item: Item, run: int) -> Row:
    size = steps.StepSize("prefill", rows=item.params["rows"], context=item.params["context"])
    (inputs,) = measure.step_sets(size)
    kernels = _checked_step(item, inputs)
    figures = measure.time_prompt(inputs)
    parts = {
        "scoring": figures["scoring"],
        "selection": figures["selection"],
        "one after the other": figures["apart"],
    }
    us = figures["together"]
    return Row(
        item.section, item.op, item.form, item.point, kernels, us, (us,), parts=parts, clocks=bench.clocks(),
        run=run,
    )  # fmt: skip


def _checked_step(item: Item, inputs: steps.StepInputs) -> dict[str, str]:
    """Check a step against the references; gives the fingerprints of its kernels.

    Raises:
        WrongResultError: the step's results differ.
    """
    ops.clear()
    _, comparisons = check.run_checked(inputs)
    failures = [f"{op}: {text}" for op, comparison in comparisons.items() for text in comparison.failures]
    if failures:
        raise WrongResultError(
            item.key,
            expected="the references' results",
            got="; ".join(failures),
            fix="report it: no time of it is recorded",
        )
    return _kernels(steps.used())


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        path: the file.
        results: its content.
        left: how many of the chosen items have no row.
        failed: a line for each item that failed.
    """

    path: Path
    results: Results
    left: int
    failed: Sequence[str]


@checked
def record(
    path: Path,
    chosen: Sequence[Item],
    *,
    limit: float = 0.0,
    again: bool = False,
    said: Callable[[str], None] | None = None,
) -> Outcome:
    """Measure the chosen items that the file at `path` lacks, and write the file after each.

    Args:
        path: The file of results.
        chosen: The items to measure.
        limit: Starts no item after this many seconds; 0 for no limit.
        again: Starts a new file.
        said: Called with the key of each item before its measurement.

    Raises:
        InvalidArgumentError: the file is of another commit or kind of GPU, or its kernels have changed; the
            error says what to do.
        ArtifactError: the file is damaged.
        CacheError: the file cannot be written.
        ExecutorUnavailableError: there is no GPU.
    """
    bench.require_gpu()
    begun = time.monotonic()
    recorded = results.begin(None if again else results.read(path), _fresh(), path)
    run, session = len(recorded.runs) - 1, Session()
    failed: list[str] = []
    done = {row.key for row in recorded.rows}
    left = [item for item in chosen if item.key not in done]
    for number, item in enumerate(left):
        if limit and time.monotonic() - begun >= limit:
            return Outcome(path, recorded, len(left) - number + len(failed), failed)
        if said is not None:
            said(item.key)
        ended = recorded.ended.get(item.key, 0)
        # Write the count before the measurement, in case the process dies in it.
        results.write(path, replace(recorded, ended={**recorded.ended, item.key: ended + 1}))
        session.with_peers = ended < MOST_ENDED
        try:
            with torch.inference_mode():
                row = measured(item, session, run)
            recorded = replace(recorded.with_row(row), absent={**recorded.absent, **session.absent})
        except (DslKernelError, torch.OutOfMemoryError) as error:
            failed.append(f"{item.key}: {error}")
        results.write(path, recorded)
        torch.cuda.empty_cache()
    return Outcome(path, recorded, len(failed), failed)


def _fresh() -> Results:
    """Results without rows, for the current commit, card and versions.

    Raises:
        ExecutorUnavailableError: the library runs from no checkout, so that no commit identifies what is
            timed.
    """
    facts = bench.environment()
    if not facts["commit"]:
        raise ExecutorUnavailableError(
            "--record",
            expected="a checkout in git, whose commit the rows are of",
            got="none",
            fix="run it in a clone of the repository",
        )
    card = results.card_mark(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
    run = Run(facts["date"], bench.command(sys.argv), facts.get("driver"), card)
    versions = {"torch": facts["torch"], "CUDA": facts["torch_cuda"], **facts["versions"]}
    return Results(facts["gpu"], facts["commit"], facts["dsl_kernels"], versions, (run,))
