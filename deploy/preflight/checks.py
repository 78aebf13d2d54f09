"""What `secfed site check` concludes from what was found: one pure function a question.

    found (network_probe.py, study_check.py) -> here and route_check.py -> secfed/cli/site_check.py

Nothing here opens a file or a connection. A check says what is so in words for a person, and what to do where
it fails; the exit code of a failure is that of the error which the agent would end or refuse with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from secfed.deploy.enrolment import site_status
from secfed.deploy.transport.messages import HelloReply
from secfed.errors import BudgetExceeded, ConfigError, LinkError, RosterError, SecfedError

if TYPE_CHECKING:
    from secfed.dp.accounting.budget import Budget

LEAST_FREE_BYTES: Final = 1_000_000_000
_LONGEST_NAME: Final = 200


@dataclass(frozen=True)
class PreflightCheck:
    """One question and its answer."""

    name: str
    ok: bool | None  # None if it was not looked at, because something before it failed
    detail: str
    remedy: str = ""  # with ``ok``, what to do before a date or before the next step
    exit_code: int = 0


def passed(name: str, detail: str, remedy: str = "") -> PreflightCheck:
    """All is well."""
    return PreflightCheck(name, True, detail, remedy)


def skipped(name: str, why: str) -> PreflightCheck:
    """Not looked at."""
    return PreflightCheck(name, None, f"not looked at: {why}")


def failed(name: str, detail: str, remedy: str, kind: type[SecfedError] = ConfigError) -> PreflightCheck:
    """Something is wrong."""
    return PreflightCheck(name, False, detail, remedy, kind.exit_code)


def failed_with(name: str, error: SecfedError) -> PreflightCheck:
    """What the agent would end or refuse with."""
    return PreflightCheck(name, False, error.message, error.remedy, error.exit_code)


def printable(text: str) -> str:
    """Somebody else's words on one line, without control characters, and not too many."""
    return "".join(char if char.isprintable() else " " for char in text)[:_LONGEST_NAME]


def exit_code(checks: Iterable[PreflightCheck]) -> int:
    """0 if every check passed; else that of the first that did not, which is where to begin."""
    return next((check.exit_code or SecfedError.exit_code for check in checks if check.ok is False), 0)


def folder_check(found: site_status.StatusItem) -> PreflightCheck:
    """A line of ``secfed site status`` as a check."""
    if found.level is not site_status.Level.BAD:
        return passed(found.subject, found.text, found.remedy)
    kind = RosterError if found.subject == "roster" else ConfigError
    return failed(found.subject, found.text, found.remedy, kind)


def versions_check(versions: Mapping[str, str | None]) -> PreflightCheck:
    """Versions of what an agent needs; None for a package that is missing."""
    missing = ", ".join(name for name, version in versions.items() if version is None)
    if missing:
        remedy = "in the folder of the repository: pip install '.[net]'"
        return failed("versions", f"not installed: {missing}", remedy)
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return passed("versions", f"{listed}; all parties of a study run the same secfed")


def space_check(
    folder: str, free_bytes: int, writable: bool, needed_bytes: int = LEAST_FREE_BYTES
) -> PreflightCheck:
    """Whether the state folder can take what an exchange writes."""
    if not writable:
        remedy = "run this as the agent's account, or chown"
        return failed("disk", f"{folder}: this account cannot write there", remedy)
    free = f"{folder}: {free_bytes / 1e9:.1f} GB free"
    if free_bytes < needed_bytes:
        remedy = "free space, or put agent.state of site.toml on another disk"
        return failed("disk", f"{free}, {needed_bytes / 1e9:.1f} GB wanted", remedy)
    return passed("disk", free)


# --- what the aggregator says -----------------------------------------------------------------------------


def membership_check(answer: HelloReply | LinkError) -> PreflightCheck:
    """Whether the aggregator takes this site for a member."""
    if isinstance(answer, HelloReply):
        return passed("membership", "the aggregator knows this site's certificate and has it in its roster")
    kind = RosterError if answer.message.startswith("permission denied") else LinkError
    return failed("membership", answer.message, answer.remedy, kind)


def served_check(answer: HelloReply | LinkError, wanted: str = "") -> PreflightCheck:
    """What is served now; ``wanted`` is the id of the study that the administrator asks about, or empty."""
    if isinstance(answer, LinkError):
        return skipped("served", "the aggregator did not say")
    study, digest = _split(answer.study)
    what = f"{study}, digest {digest[:16]}{', which is finished' if answer.finished else ''}"
    if not wanted or answer.study == wanted:
        return passed("served", what)
    name, version = _split(wanted)
    if name != study:
        return passed("served", f"{what}; {name} is not served now")
    detail = f"{what}: another version than this file, {version[:16]}"
    return failed("served", detail, "ask the study centre for the file as it is served")


def served_roster_check(answer: HelloReply | LinkError, pinned: bytes) -> PreflightCheck:
    """Whether the aggregator uses the roster that is pinned here."""
    name = "served roster"
    if isinstance(answer, LinkError):
        return skipped(name, "the aggregator did not say")
    if not pinned:
        return skipped(name, "no roster is pinned here")
    if answer.finished:
        return skipped(name, "the study is over")
    if answer.roster == pinned:
        return passed(name, f"the aggregator uses the pinned one, digest {pinned.hex()[:16]}")
    if not answer.roster:
        remedy = "all parties of a study run the same version of secfed"
        return failed(name, "the aggregator does not say which roster it uses", remedy, RosterError)
    return failed(
        name,
        f"the aggregator uses {answer.roster.hex()[:16]}, and {pinned.hex()[:16]} is pinned here; the agent "
        "refuses the study",
        "get the new roster from the study centre, compare its digest and pin it: secfed site trust ROSTER",
        RosterError,
    )


def _split(study: str) -> tuple[str, str]:
    name, _, digest = study.rpartition("-")
    return printable(name), printable(digest)


# --- the budget -------------------------------------------------------------------------------------------


def budget_check(data: str, budget: Budget, spent: float, epsilon: float, delta: float) -> PreflightCheck:
    """What a study plans to spend, and what is left for it after ``spent``, an epsilon.

    What two studies cost together is less than the sum of their epsilons, so only a budget that is spent is
    a failure; one that the sum would exceed is a warning.
    """
    from secfed.audit.privacy.phrases import number_down, number_up  # takes a while

    plan = f"the study spends at most epsilon {epsilon:g} at delta {delta:g}"
    name = f"{data}: {budget.describe()}"
    if budget.epsilon is None:
        return passed("budget", f"{name}; {plan}")
    left = max(0.0, budget.epsilon - spent)
    detail = f"{name}: {number_up(spent)} spent, {number_down(left)} left; {plan}"
    if left <= 0.0:
        remedy = "wait until the period is over, or raise the budget in policy.toml"
        return failed("budget", detail, remedy, BudgetExceeded)
    may_end = "may not last to the end of the study, unless part of it is paid: watch agent status"
    return passed("budget", detail, may_end if epsilon > left else "")
