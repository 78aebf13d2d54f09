"""A person's decision about a study: who decides, and how it gets into approvals and the decision log.

The command line and the console both decide through here.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from secfed.deploy.admission import kept_offers, near_twins
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import Decision
from secfed.deploy.admission.decision_recorder import record_now
from secfed.deploy.admission.near_twins import NearTwin
from secfed.deploy.admission.person import Person
from secfed.deploy.enrolment import messages
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.policy.policy import Policy
from secfed.errors import PolicyRefused, SecfedError, TranscriptError

_LOGIN: Final = Path("/proc/self/loginuid")
_NOBODY: Final = 2**32 - 1  # as the kernel says that nobody logged in
APPROVED_LATER: Final = "the agent serves no study before its approval is recorded"
REFUSED_LATER: Final = "it holds, and the agent records it when it can"


def account() -> str:
    """The account of the person at this machine.

    The kernel keeps who logged in, whatever account that person has switched to since; without a login, it is
    the account of this process.
    """
    try:
        number = int(_LOGIN.read_text("ascii"))
    except (OSError, ValueError):
        number = _NOBODY
    number = os.getuid() if number == _NOBODY else number
    try:
        return pwd.getpwuid(number).pw_name.replace(",", " ")  # a comma stands between two persons
    except KeyError:
        return f"uid {number}"


def approve(
    site: SiteFolder,
    study: str,
    by: Person,
    *,
    despite_twins: bool,
    show: Callable[[str, Sequence[NearTwin]], None] = lambda _digest, _twins: None,
) -> Decision:
    """Approve a study by its name or digest, or lift its refusal; ``by`` is who decides.

    ``show`` is called with the digest and the near twins that a person must know of.

    Raises:
        PolicyRefused: nothing is kept here of what the study asks for, so nobody read it; there are near
            twins, and the person did not say that they are intended; or the person has approved already,
            and the policy wants a second one.
        ConfigError: no study or several are meant, or a file cannot be read.
    """
    approvals = Approvals(site.approvals_path)

    def shown(digest: str) -> str:
        if kept_offers.kept(site.state, digest) is None:
            raise PolicyRefused(
                "not approved: nothing is kept here of what the study asks for, so nobody has read it",
                remedy="let the agent run until it asks again, and look at it with: secfed agent show "
                f"{digest[:16]}",
            )
        twins = near_twins.noted(site.state, digest)
        show(digest, twins)
        if twins and not despite_twins:
            raise PolicyRefused(
                "not approved: the study resembles an earlier one",
                remedy=f"if that is intended: secfed agent approve {digest[:16]} --near-twin",
            )
        return near_twins.fingerprint(twins)

    persons = Policy.load(site.policy_path).approvers
    return approvals.approve_what(study, messages.utc_now(), shown, by=by, persons=persons)


def refuse(site: SiteFolder, study: str, by: Person, *, unasked: bool = False) -> Decision:
    """Refuse a study by its name or digest; a single person is enough.

    ``ConfigError``: no study or several are meant; with ``unasked`` it need not have asked yet.
    """
    return Approvals(site.approvals_path).refuse_what(study, messages.utc_now(), by=by, unasked=unasked)


def record(site: SiteFolder, otherwise: str) -> bool:
    """Record in the decision log what was just decided; False where the agent does it later.

    ``TranscriptError``: it cannot be recorded; ``otherwise`` says what that means.
    """
    try:
        return record_now(site)
    except SecfedError as error:
        raise TranscriptError(f"it is not in the decision log: {error}", remedy=otherwise) from None
