"""Which rank has which tokens of a sharded context, and how the ranks exchange their results.

Exchanges use torch.distributed: a process group's all-gather, or torch's symmetric memory. After a barrier,
the ranks of one host read one another's symmetric buffers, by a copy or in the merging kernel. If a rank does
not come to an exchange, the others raise a typed error within the group's timeout.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .. import env
from ..arguments import checked, integer, require_known
from ..errors import ExchangeError, ExecutorUnavailableError, InvalidArgumentError, LaunchError
from ..kernels.lightning_indexer.problem import PAGE
from ..kernels.merge_entries.problem import MOST_INTERLEAVE
from ..ops._dispatch import of_its_own
from ..ops.workspace import Workspace, capturing
from .exchanges import COLLECTIVES, COPY, DIRECT, Exchange, fastest

TRANSPORTS = ("collectives", "symmetric", "symmetric_copy", "symmetric_direct", "fastest")
# Slots of symmetric buffers. Entries alternate between two: when a rank writes one again, every rank has come
# to the exchange in between, and so has read it.
ENTRIES, PARTIALS, QUERIES = (0, 1), 2, 3

_made: Counter[str] = Counter()
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class Lengths:
    """The lengths that a rank's launches need, the same for every layer of a model.

    Attributes:
        starts, ends: [rows] int32, the range of the rank's own tokens that each row sees.
        entries: [rows] int32, the entries of each row from all ranks together.
    """

    starts: torch.Tensor
    ends: torch.Tensor
    entries: torch.Tensor


@dataclass(frozen=True)
class _Symmetric:
    """Symmetric memory: this rank's, torch's handle of all ranks', and the distances to them in bytes."""

    memory: torch.Tensor
    handle: Any
    distances: torch.Tensor


class Sharding:
    """Ranks that share a context, and the tokens that each rank has.

    The ranks take turns at runs of `interleave` tokens: position p is on rank `p // interleave % ranks`, as
    its token `p // (interleave * ranks) * interleave + p % interleave`. The default run of 64 tokens is a
    page, as in vLLM's decode context parallelism with `cp_kv_cache_interleave_size=64`. A run as long as a
    rank's share of the longest context makes the shards contiguous. Every rank must make its shardings and
    call its steps in the same order.

    Args:
        group: the process group; by default all processes.
        interleave: tokens of a run.
        transport: how ranks exchange. "collectives": the group's all-gather. "symmetric": torch's symmetric
            memory of GPUs of one host, without multicast, read by a copy or in the merging kernel, whichever
            `exchanges` predicts to be faster. "symmetric_copy": always the copy. "symmetric_direct": always
            the kernel, if it takes the sizes. "fastest": the fastest of all three ways at each exchange.

    Raises:
        ExecutorUnavailableError: there is no process group.
        InvalidArgumentError, ArgumentTypeError, UnknownNameError: an argument has another type or value, or
            this process is not in the group.
    """

    @checked
    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        interleave: int = PAGE,
        transport: str = "collectives",
    ) -> None:
        self.interleave = integer("interleave", interleave, 1, MOST_INTERLEAVE)
        require_known("transport", transport, TRANSPORTS, "transport")
        if not dist.is_available() or not dist.is_initialized():
            raise ExecutorUnavailableError(
                "group",
                expected="a process group",
                got="none in this process",
                fix="call torch.distributed.init_process_group, or start the program with torchrun",
            )
        self.group = group if group is not None else c10d._get_default_group()
        self.rank, self.ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise InvalidArgumentError(
                "group", expected="a group that this process is in", got="another group",
                fix="call it on the group's ranks only"
            )  # fmt: skip
        self.transport = transport
        name = self.group.group_name
        # Ranks make shardings in the same order, so they find one another's notes under the same names.
        self._prefix = f"dsl_kernels/{name}/{_made[name]}"
        _made[name] += 1
        self._calls, self._meetings = 0, 0
        self._symmetric: dict[int, _Symmetric] = {}
        self._replaced: list[_Symmetric] = []

    def tokens_before(self, ends: torch.Tensor) -> torch.Tensor:
        """The number of tokens that every rank has before each position: [..., ranks] of [...] int32."""
        turn, firsts = self.interleave * self.ranks, torch.arange(
            self.ranks, dtype=torch.int32, device=ends.device
        )  # fmt: skip
        ends = ends.unsqueeze(-1)
        last = (ends % turn - firsts * self.interleave).clamp(0, self.interleave)
        return ends.div(turn, rounding_mode="floor") * self.interleave + last

    @checked
    def lengths(self, ends: torch.Tensor, topk: int, starts: torch.Tensor | None = None) -> Lengths:
        """The lengths of a step whose rows see the positions from `starts` on and before `ends`.

        Args:
            ends: [rows] int32.
            topk: tokens that the step selects.
            starts: [rows] int32; 0 by default.

        Raises:
            ArgumentTypeError, InvalidArgumentError: an argument has another type, dtype or shape.
        """
        for name, limits in (("ends", ends), ("starts", starts)):
            if limits is not None and (limits.dtype != torch.int32 or limits.shape != (ends.numel(),)):
                raise InvalidArgumentError(
                    name, expected="[rows] int32", got=f"{limits.dtype} {list(limits.shape)}",
                    fix="call .view(-1).int()"
                )  # fmt: skip
        after = self.tokens_before(ends.clamp(min=0))
        before = torch.zeros_like(after) if starts is None else self.tokens_before(starts.clamp(min=0))
        entries = (after - before).clamp(0, topk).sum(-1, dtype=torch.int32)
        return Lengths(before[..., self.rank].contiguous(), after[..., self.rank].contiguous(), entries)

    def tokens(self, positions: torch.Tensor) -> torch.Tensor:
        """This rank's tokens at these positions; -1 for another rank's token and for a negative position."""
        runs = positions.div(self.interleave, rounding_mode="floor")
        tokens = runs.div(self.ranks, rounding_mode="floor") * self.interleave + positions % self.interleave
        return tokens.masked_fill((runs % self.ranks != self.rank) | (positions < 0), -1)

    @contextlib.contextmanager
    def step(self, call: str) -> Iterator[None]:
        """A context for one call on every rank: notes this rank's error for the ranks that wait for it."""
        self._calls += 1
        self._call = call
        try:
            yield
        except ExchangeError:
            raise
        except Exception as error:
            if self.ranks > 1:
                with contextlib.suppress(RuntimeError):
                    self._store.set(self._note(self.rank), f"{type(error).__name__}: {error}")
            raise

    def agree(self, facts: Mapping[str, object]) -> None:
        """With DSL_KERNELS_CHECK_VALUES, require the same shapes and options of a call on every rank.

        Raises:
            InvalidArgumentError: a fact differs; every rank raises the same text.
            ExchangeError: a rank did not come.
        """
        if self.ranks == 1 or not env.CHECK_VALUES.get():
            return
        every = self._meet("its arguments", json.dumps({name: str(fact) for name, fact in facts.items()}))
        first, *others = (json.loads(text) for text in every)
        for rank, other in enumerate(others, 1):
            for name in first:
                if other.get(name) != first[name]:
                    raise InvalidArgumentError(
                        name,
                        expected=f"the same on every rank of dsa.parallel.{self._call}",
                        got=f"{first[name]} on rank 0 and {other.get(name)} on rank {rank}",
                        fix="call it with the same shapes and options on every rank",
                    )

    def buffer(self, slot: int, size: int, device: torch.device, workspace: Workspace) -> torch.Tensor:
        """Memory for the bytes that this rank gives to an exchange; peers may still read earlier ones there.

        Raises:
            LaunchError: symmetric memory would have to grow inside a capture.
        """
        if self.transport == "collectives" or self.ranks == 1:
            return workspace.get(f"exchange {slot}", (size,), torch.uint8, device, zeroed=False)
        exchange = self._symmetric.get(slot)
        if exchange is None or exchange.memory.numel() < size:
            exchange = self._grow(slot, size, device)
        return exchange.memory[:size]

    def _grow(self, slot: int, size: int, device: torch.device) -> _Symmetric:
        if capturing(device):
            raise LaunchError(
                f"the buffer of exchange {slot}",
                expected=f"room for {size} bytes before the capture began",
                got="a first use of these sizes inside a CUDA graph capture",
                fix="run the step once with these sizes before capturing",
            )
        if slot in self._symmetric:
            # A captured graph may still use it.
            self._replaced.append(self._symmetric[slot])
        with of_its_own():
            memory, handle = self._rendezvous(slot, size, device)
            places = list(handle.buffer_ptrs)
            distances = torch.tensor(
                [place - places[self.rank] for place in places], dtype=torch.int64, device=device
            )
        exchange = self._symmetric[slot] = _Symmetric(memory, handle, distances)
        return exchange

    def _rendezvous(self, slot: int, size: int, device: torch.device) -> tuple[torch.Tensor, Any]:
        """Symmetric memory of `size` bytes, and torch's handle of it."""
        if device.type != "cuda":
            raise ExecutorUnavailableError(
                "transport", expected="GPUs for symmetric memory", got=f"tensors on {device}",
                fix="pass 'collectives'"
            )  # fmt: skip
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        import torch.distributed._symmetric_memory as symmetric

        memory = symmetric.empty(size, dtype=torch.uint8, device=device)
        return memory, symmetric.rendezvous(memory, self.group)

    def way(self, exchange: Exchange) -> str:
        """The way of an exchange, "collectives", "copy" or "direct", the same on every rank.

        One rank alone has nothing to exchange, and its way is "copy".
        """
        if self.ranks == 1:
            return COPY
        ways = {
            "collectives": (COLLECTIVES,), "symmetric": (COPY, DIRECT), "symmetric_copy": (COPY,),
            "symmetric_direct": (DIRECT,), "fastest": (COLLECTIVES, COPY, DIRECT),
        }[self.transport]  # fmt: skip
        return fastest(exchange, self.ranks, ways)

    def peers(self, what: str, slot: int) -> torch.Tensor:
        """Pass a barrier; returns the distances from this rank's buffer to each rank's, [ranks] int64 bytes.

        Raises:
            ExchangeError: a rank did not come within the group's timeout, or the connection broke.
        """
        with self._exchange(what):
            self._symmetric[slot].handle.barrier()
        return self._symmetric[slot].distances

    @contextlib.contextmanager
    def _exchange(self, what: str) -> Iterator[None]:
        if env.CHECK_VALUES.get():
            self._meet(what, "")
        try:
            yield
        except RuntimeError as error:
            raise self._missed(what, str(error).partition("\n")[0]) from error

    def gather(
        self, what: str, slot: int, given: torch.Tensor, way: str, workspace: Workspace
    ) -> torch.Tensor:
        """Gather the bytes [size] of each rank on every rank, [ranks, size], by collectives or a copy.

        Raises:
            ExchangeError: a rank did not come within the group's timeout, or the connection broke.
        """
        if self.ranks == 1:
            return given[None]
        received = workspace.get(
            f"exchanged {slot}", (self.ranks, len(given)), torch.uint8, given.device, zeroed=False
        )
        with self._exchange(what):
            if way == COLLECTIVES:
                all_gather(received.view(-1), given, group=self.group)
            else:
                handle = self._symmetric[slot].handle
                handle.barrier()
                peers = [handle.get_buffer(rank, (len(given),), torch.uint8) for rank in range(self.ranks)]
                torch.stack(peers, out=received)
        return received

    @property
    def _store(self) -> Any:
        return c10d._get_default_store()

    @property
    def _timeout(self) -> float:
        """Seconds that the group lets an exchange take."""
        kinds = [
            torch.device(kind) for kind in ("cuda", "cpu") if kind != "cuda" or torch.cuda.is_available()
        ]
        for kind in kinds:
            with contextlib.suppress(RuntimeError, AttributeError):
                limit: float = self.group._get_backend(kind).options._timeout.total_seconds()
                return limit
        return float(self._store.timeout.total_seconds())

    def _note(self, rank: int) -> str:
        return f"{self._prefix}/failed/{self._calls}/{rank}"

    def _meet(self, what: str, text: str) -> list[str]:
        """Wait on the host until every rank is here; returns the text of each rank."""
        store, deadline = self._store, time.monotonic() + self._timeout
        self._meetings += 1
        names = [f"{self._prefix}/met/{self._meetings}/{rank}" for rank in range(self.ranks)]
        store.set(names[self.rank], text)
        for rank, name in enumerate(names):
            while not store.check([name]):
                if store.check([self._note(rank)]):
                    raise self._missed(what, f"rank {rank} failed")
                if time.monotonic() > deadline:
                    raise self._missed(what, f"no rank {rank} within {self._timeout:g} s")
                time.sleep(1e-3)
        # All ranks are here, so all have read the texts of the previous meeting.
        store.delete_key(f"{self._prefix}/met/{self._meetings - 1}/{self.rank}")
        return [store.get(name).decode() for name in names]

    def _missed(self, what: str, reason: str) -> ExchangeError:
        notes = []
        with contextlib.suppress(RuntimeError):
            notes = [
                f"rank {rank} raised {self._store.get(self._note(rank)).decode()}"
                for rank in range(self.ranks)
                if self._store.check([self._note(rank)])
            ]
        return ExchangeError(
            f"dsa.parallel.{self._call} on rank {self.rank}, exchange of {what}",
            expected=f"all {self.ranks} ranks within {self._timeout:g} s",
            got="; ".join([reason, *notes]),
            fix="correct the error that the failed rank reports, then make a new process group",
        )
