"""Kernels of several checkouts on this GPU in turns, each checkout in a process of its own.

    python benchmarks/compare_trees.py sparse_mla --tree before=../old --tree after=. --grid serving
        [--point 't=(4|8) '] [--variant ID] [--launch splits=16] [--rounds 7] [--replays 9] [--json FILE]

At each point every tree draws the same inputs, checks its result against the reference, and then times CUDA
graphs over inputs that rotate past the L2. The trees take turns in a random order in every round. Printed are
the first tree's microseconds, the median of the rounds, and each other tree's share of them. Dense products
need half a second of replays for the power limit to settle (`--replays 400` for a graph of about 1 ms, fewer
for calls above 0.3 ms, of which a graph has at least four). With few replays, trees share what the limit
allows, and the one that draws more may gain. Without `--variant` each tree launches what it selects. A tree
without a DSL takes its kernels from a bundle: `--tree after=.:BUNDLE`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def serve(op: str, grid: str, replays: int) -> None:
    """In the tree's process: answer each line of standard input with a line of JSON.

    The first answer lists the grid's points. `{"point": ...}` prepares and checks one, and `{}` times it.
    """
    from dsl_kernels_lab.timing import bench, grids

    points = {point.name: point for point in grids.points(op, grid)}
    _say(list(points))
    calls: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "point" in asked:
                # The former point's inputs go before the next one's come.
                calls = None
                fixture = grids.prepare(points[asked["point"]])
                grids.check_variant(
                    points[asked["point"]], fixture, asked["variant"], launch=asked["launch"] or None
                )
                calls = fixture.calls(asked["variant"], asked["launch"] or None)
                _say({})
            else:
                _say({"us": bench.graph_time(calls, replays=replays).us})
        except Exception as error:
            _say({"error": f"{type(error).__name__}: {error}"})


def _say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


class Tree:
    """A checkout's process."""

    def __init__(self, spelled: str, op: str, grid: str, replays: int) -> None:
        self.name, _, place = spelled.partition("=")
        folder, _, bundle = place.partition(":")
        if not (self.name and (Path(folder) / "dsl_kernels_lab").is_dir()):
            raise SystemExit(
                f"--tree: expected NAME=CHECKOUT or NAME=CHECKOUT:BUNDLE, got {spelled!r}. "
                "Fix: name a checkout of this project"
            )
        settings = {
            "PYTHONPATH": os.pathsep.join([folder, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
        }
        if bundle:
            settings |= {"DSL_KERNELS_BUNDLE_DIR": bundle, "DSL_KERNELS_DISABLE_JIT": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, op, "--grid", grid, "--replays", str(replays), "--serve"],
            text=True, env=os.environ | settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.points: list[str] = self._answer()

    def ask(self, **question: Any) -> Any:
        """The answer to a question.

        Raises:
            RuntimeError: the tree cannot run or time the point.
        """
        assert self.process.stdin is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(("{", "[")):
                return json.loads(line)
        raise SystemExit(f"{self.name}: its process ended with status {self.process.wait()}")


def compared(trees: Sequence[Tree], asked: dict[str, Any], rounds: int) -> dict[str, float]:
    """Each tree's microseconds at a point."""
    for tree in trees:
        tree.ask(**asked)
    times: dict[str, list[float]] = {tree.name: [] for tree in trees}
    for number in range(rounds):
        for tree in random.Random(f"{asked['point']} {number}").sample(trees, len(trees)):
            times[tree.name].append(tree.ask()["us"])
    return {name: statistics.median(each) for name, each in times.items()}


def table(names: Sequence[str], rows: Sequence[tuple[str, dict[str, float]]]) -> Iterator[str]:
    """Lines of a Markdown table: the first tree's microseconds, and the other trees' share of them."""
    yield f"| point | {names[0]}, µs | {' | '.join(names[1:])} |"
    yield "| --- " * (len(names) + 1) + "|"
    for point, us in rows:
        shares = (f"{us[name] / us[names[0]]:.3f}" for name in names[1:])
        yield f"| {point} | {us[names[0]]:.2f} | {' | '.join(shares)} |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("op")
    parser.add_argument("--tree", action="append", default=[])
    parser.add_argument("--grid", default="core")
    parser.add_argument("--point", default="", help="only points that match this regular expression")
    parser.add_argument("--variant")
    parser.add_argument("--launch", action="append", default=[], metavar="NAME=NUMBER")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--replays", type=int, default=9, help="of a graph, in a round")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        serve(args.op, args.grid, args.replays)
        return 0
    if len(args.tree) < 2:
        parser.error("--tree: expected two checkouts or more; name each as NAME=CHECKOUT")
    trees = [Tree(spelled, args.op, args.grid, args.replays) for spelled in args.tree]
    launch = {name: int(value) for name, _, value in (pair.partition("=") for pair in args.launch)}
    rows, failed = [], False
    for point in trees[0].points:
        if re.search(args.point, point) and all(point in tree.points for tree in trees):
            asked = {"point": point, "variant": args.variant, "launch": launch}
            try:
                rows.append((point, compared(trees, asked, args.rounds)))
            except RuntimeError as error:
                print(f"{point}: {error}", file=sys.stderr)
                failed = True
    print("\n".join(table([tree.name for tree in trees], rows)))
    if args.json:
        args.json.write_text(json.dumps(dict(rows), indent=1) + "\n")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
