"""Run cases against a target, many at once."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence

from smb3server.client.protocol import ServerError
from smb3server.lab.conformance.observed import Monitor
from smb3server.lab.conformance.peer import Ended, Silence
from smb3server.lab.conformance.registry import Case
from smb3server.lab.conformance.target import Target
from smb3server.lab.conformance.trial import Trial
from smb3server.lab.conformance.verdict import Busy, Finding, Result, Verdict
from smbdirect.errors import SmbDirectError

AT_ONCE = 8
ATTEMPTS = 3
"""How often a case is tried on a machine that is too busy to judge times."""
_SPARE = 60.0

Progress = Callable[[Result], None]


async def run(
    target: Target, cases: Sequence[Case], progress: Progress = lambda result: None, at_once: int = AT_ONCE
) -> list[Result]:
    """Run ``cases`` and return their results in the given order.

    Cases that wait for timers run beside all others, which share ``at_once`` places. Cases that judge the whole run
    come last.
    """
    places = asyncio.Semaphore(at_once)
    monitor = Monitor()
    results: dict[str, Result] = {}

    async def in_place(case: Case) -> None:
        if case.waits:
            result = await run_case(target, case, monitor)
        else:
            async with places:
                result = await run_case(target, case, monitor)
        results[case.name] = result
        progress(result)

    await asyncio.gather(*(in_place(case) for case in cases if not case.last))
    await asyncio.gather(*(in_place(case) for case in cases if case.last))
    return [results[case.name] for case in cases]


async def run_case(target: Target, case: Case, monitor: Monitor | None = None) -> Result:
    """Run one case. If this machine is too busy, try again."""
    monitor = monitor or Monitor()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await _attempt(target, case, monitor)
        except Busy as busy:
            if attempt == ATTEMPTS:
                return _result(target, case, Verdict.INCONCLUSIVE, str(busy))
    raise AssertionError("the loop returns")


async def _attempt(target: Target, case: Case, monitor: Monitor) -> Result:
    """Run one case once. Raises ``Busy``."""
    if target.fabric not in case.fabrics:
        return _result(target, case, Verdict.NOT_APPLICABLE, f"only on {', '.join(case.fabrics)}")
    loop = asyncio.get_running_loop()
    began = loop.time()
    trial = Trial(target, monitor)
    verdict, reason = Verdict.PASS, ""
    limit = _SPARE + 3 * target.timing.keepalive if case.waits else _SPARE + 3 * target.timing.patience
    try:
        async with asyncio.timeout(limit):
            await case.run(trial)
    except Busy:
        raise
    except Finding as finding:
        verdict, reason = finding.verdict, str(finding)
    except (Silence, Ended, ServerError, SmbDirectError) as error:
        # What a case expects without saying what else would be wrong: an answer, and a status of success.
        verdict, reason = Verdict.FAIL, str(error)
    except TimeoutError:
        verdict, reason = Verdict.INCONCLUSIVE, f"not finished within {limit:g} s"
    except Exception as error:
        # A defect of the case. The others go on.
        verdict, reason = Verdict.INCONCLUSIVE, f"the case itself failed: {error!r}"
        trial.evidence += traceback.format_exc().splitlines()
    finally:
        await trial.finish()
    return _result(target, case, verdict, reason, trial.evidence, loop.time() - began)


def _result(
    target: Target,
    case: Case,
    verdict: Verdict,
    reason: str,
    evidence: Sequence[str] = (),
    seconds: float = 0.0,
) -> Result:
    return Result(
        case.name, case.suite, case.section, case.rule, target.fabric, verdict, reason, list(evidence), seconds
    )
