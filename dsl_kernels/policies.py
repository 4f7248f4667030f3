"""Policies of operations, found by name: what turned out to be fast, apart from what a kernel does.

A tile program is correct at any knobs. Its policy, `kernels/<op>/policy.py`, says which combinations are
worth generating, how a launch is distributed over a GPU, and what the cost model knows. To change it changes
no kernel.
"""

from __future__ import annotations

from . import kernels
from .errors import UnknownNameError
from .tile.lang import Policy


def names() -> list[str]:
    """Every operation that has a policy."""
    return kernels.names("policy")


def get(op: str) -> Policy:
    """The policy of an operation; the default one if there is no `kernels/<op>/policy.py`."""
    try:
        policy: Policy = kernels.get(op, "policy", "POLICY", "policy")
    except UnknownNameError:
        policy = Policy()
    return policy
