"""One conformance case against a server of ours, as it is or broken on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from smb3server.lab.conformance.own import SHORT, own_server
from smb3server.lab.conformance.registry import Case, load
from smb3server.lab.conformance.runner import AT_ONCE, run
from smb3server.lab.conformance.target import Timing
from smb3server.lab.conformance.verdict import Result, Verdict

BROKEN = Timing(
    negotiation=0.6, keepalive=0.8, keepalive_answer=0.4, credit=0.8, setup=2.0, patience=0.5, quiet=0.2, slack=0.3
)
"""For servers of which a case waits in vain for what they should do."""


def results(fabric: str, cases: Sequence[Case], timing: Timing = SHORT, at_once: int = AT_ONCE) -> list[Result]:
    """Run ``cases`` against a new server."""

    async def body() -> list[Result]:
        async with own_server(fabric, timing) as target:
            return await run(target, cases, at_once=at_once)

    return asyncio.run(body())


def result(name: str, fabric: str = "loopback", timing: Timing = SHORT) -> Result:
    """Run one case, chosen by its name, against a new server."""
    (found,) = results(fabric, [load()[name]], timing)
    return found


def expected(case: Case, fabric: str) -> Verdict:
    """Return the verdict that our server gets."""
    return Verdict.PASS if fabric in case.fabrics else Verdict.NOT_APPLICABLE


def told(found: Result) -> str:
    """Return what a failing test shows."""
    return "\n".join([f"{found.name} on {found.fabric}: {found.verdict.value}: {found.reason}", *found.evidence[-40:]])
