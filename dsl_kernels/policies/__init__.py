"""Policies, one module an operation, found by its name: what turned out to be fast, apart from what a kernel does.

A tile program is right at any knobs. Its policy says which combinations are worth generating, how a launch is dealt out
over a GPU, and what the cost model knows; a change of it changes no kernel.
"""

from __future__ import annotations

from .._discover import discover, module_names
from ..errors import UnknownNameError
from ..tile.lang import Policy


def names() -> list[str]:
    """Every operation that has a policy."""
    return module_names(__path__)


def get(op: str) -> Policy:
    """The policy of an operation; one that knows nothing where it has no module `policies/<op>`."""
    try:
        policy: Policy = discover(__name__, op, names, "policy", "POLICY")
    except UnknownNameError:
        policy = Policy()
    return policy
