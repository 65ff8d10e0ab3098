"""SmbdFurtherRules: what the server sends, judged over all messages of the run. The rules are in ``observed``."""

from __future__ import annotations

from smb3server.client.protocol import ServerError
from smb3server.lab.conformance.cases.data_transfer import MODERATE, RESPONSE_REQUESTED, answer
from smb3server.lab.conformance.observed import RULES, Rule
from smb3server.lab.conformance.peer import Ended, Silence
from smb3server.lab.conformance.registry import case
from smb3server.lab.conformance.trial import Trial, write_and_check
from smb3server.lab.conformance.verdict import Finding
from smbdirect.errors import SmbDirectError

SUITE = "SmbdFurtherRules"


async def traffic(trial: Trial) -> None:
    """Have the server send messages of all kinds: short, fragmented, with few credits, and empty ones. Without an
    account these are only empty ones."""
    if not trial.target.share:
        peer = await trial.negotiated()
        for _ in range(3):
            since = len(trial.received)
            peer.send_data(grant=2, flags=RESPONSE_REQUESTED)
            await trial.message(peer, since, lambda header: True, trial.timing.prompt, "an answer")
        return
    for window in (1, 4):
        session = await trial.log_on(window=window)
        session.peer.quiet = True
        await write_and_check(trial, session, MODERATE)
        await answer(trial, session)


def _observed(rule: Rule) -> None:
    """Enter the case of one rule."""

    @case(SUITE, rule.name, rule.section, last=True, rule=rule.text)
    async def observed(trial: Trial) -> None:
        failure: Exception | None = None
        try:
            await traffic(trial)
        except (Finding, Silence, Ended, SmbDirectError, ServerError) as error:
            # What came until then is judged all the same.
            failure = error
        found = trial.monitor.violations[rule.name]
        trial.note(f"{trial.monitor.messages} messages of all cases were judged")
        trial.require(not found, f"{len(found)} times, at first: {found[0]}" if found else "")
        if failure is not None:
            raise failure


for _rule in RULES:
    _observed(_rule)
