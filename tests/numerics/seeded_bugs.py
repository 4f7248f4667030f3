"""Changes of PTX that are bugs, for `seeded_*.py` of the operations' folders and test_mutated_variants.

`each` breaks one site at a time, all of which must be caught; `all` breaks every site at once, for operations
that are redundant at some sites (a second fence after a first).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Mutation:
    """A textual change of PTX: its pattern, its replacement ("" drops the match), and its sites."""

    name: str
    pattern: str
    becomes: str | Callable[[re.Match[str]], str] = ""
    sites: str = "each"

    def edits(self, ptx: str) -> Iterator[str]:
        matches = list(re.finditer(self.pattern, ptx))
        if self.sites == "all":
            if matches:
                yield re.sub(self.pattern, self.becomes, ptx)
            return
        for match in matches:
            new = self.becomes(match) if callable(self.becomes) else match.expand(self.becomes)
            yield ptx[: match.start()] + new + ptx[match.end() :]


def plus(number: int) -> Callable[[re.Match[str]], str]:
    """Increase the number in the second group."""
    return lambda match: f"{match[1]}{int(match[2]) + number}"


# Both DSLs' spellings: with and without ::cta and a count, expecting bytes with or without an arrival.
ARRIVE = Mutation("dropped arrive", r"mbarrier\.arrive\.shared(::cta)?\.b64 [^,]*, \[[^;]*;")
NOINC = Mutation("dropped arrival of asynchronous copies", r"cp\.async\.mbarrier\.arrive\.noinc[^;]*;")
COMMIT = Mutation("dropped commit", r"tcgen05\.commit[^;]*;")
WAIT = Mutation("waits that do not wait", r"mbarrier\.try_wait\.parity[^;]*;", "setp.eq.u32 P1, 0, 0;", "all")
PROXY = Mutation("dropped proxy fences", r"fence\.proxy\.async\.shared::cta;", "", "all")
LOADED = Mutation("dropped waits for tensor memory", r"tcgen05\.wait::ld[^;]*;", "", "all")
STORED = Mutation("dropped waits for stores to tensor memory", r"tcgen05\.wait::st[^;]*;", "", "all")
FENCED = Mutation(
    "dropped fences of tensor memory", r"tcgen05\.fence::(before|after)_thread_sync;", "", "all"
)
# CuTe DSL adds a descriptor's constant fields to its address at compile time; 2 << 61 is the 128-byte
# swizzle.
DESCRIPTOR = r"((?:or|add)\.[bs]64\s+%rd\d+, %rd\d+, )(4611\d{15})(?=;)"
SWIZZLE = Mutation("descriptors of another swizzle", DESCRIPTOR, plus(2 << 61))
COLUMN = Mutation("descriptors that start 32 bytes late", DESCRIPTOR, plus(2))
SHAPE = Mutation("products of more columns", r"(mov\.b32\s+%r\d+, )(67372176|134579344)(?=;)", plus(1 << 17))
FREED = Mutation("tensor memory that is not freed", r"tcgen05\.dealloc[^;]*;")
MEET = Mutation("dropped CTA barriers", r"bar\.sync[^;]*;", "", "all")
WGMMA = Mutation("dropped waits for wgmma", r"wgmma\.wait_group[^;]*;", "", "all")
BYTES = Mutation(
    "a barrier that expects other bytes",
    r"(mbarrier\.(?:arrive\.)?expect_tx[^\[]*\[[^\]]*\]), [^;]*;",
    r"\1, 48;",
)
CLUSTER = Mutation("dropped cluster barriers", r"barrier\.cluster\.(arrive|wait)[^;]*;", "", "all")
INIT = Mutation("mbarriers that are not published to the cluster", r"fence\.mbarrier_init[^;]*;")
ALL_BYTES = replace(BYTES, sites="all")
LOOK = Mutation(
    "words taken for there",
    r"(@p ld\.relaxed[^{]*\{(%r\d+), (%r\d+), (%r\d+), (%r\d+)\}[^;]*;)",
    r"\1 or.b32 \2, \2, 1; or.b32 \3, \3, 1; or.b32 \4, \4, 1; or.b32 \5, \5, 1;",
    "all",
)
SENT = Mutation("words that are not sent", r"st\.relaxed\.gpu\.global\.v\d\.f32 [^;]*;", "", "all")
ZEROS = Mutation("words that are left behind", r"st\.relaxed\.gpu\.global\.v4\.b32 [^;]*;", "", "all")
RANK = Mutation(
    "peers that read their own counts",
    r"mapa(\.shared::cluster)?\.u32 (%r\d+), (%r\d+), (%r\d+);",
    r"mov.u32 \2, \3;",
    "all",
)
DISTANCE = Mutation(
    "peers at no distance", r"(ld\.global(?:\.nc)?\.[bsu]64\s+)(%rd\d+), [^;]*;", r"mov.u64 \2, 0;", "all"
)
RECEIVED = Mutation("copies and commits that one CTA of two receives", r"(mov\.b16\s+%rs\d+), 3;", r"\1, 1;")
