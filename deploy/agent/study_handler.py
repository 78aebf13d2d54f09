"""Answers one study's requests: still permitted? then the site works; what is refused is recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Roster
from secfed.crypto.messages import FinalModel, Specification, peek_type
from secfed.deploy.admission.admission import Granted, still_permitted
from secfed.deploy.admission.decision_recorder import SiteDecisions
from secfed.deploy.admission.offered import check_still_pinned, own_files
from secfed.deploy.agent.control import check_not_paused
from secfed.deploy.agent.full_disk import is_full, when_there_is_room
from secfed.deploy.agent.status import StatusBoard
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.transport.client import LinkRequest
from secfed.errors import (
    BudgetExceeded,
    ConfigError,
    PolicyRefused,
    RosterError,
    SecfedError,
    TranscriptError,
)
from secfed.site.runtime import SiteStudy
from secfed.site.terms import Terms
from secfed.storage.failpoints import failpoint
from secfed.wire.frames import Notice, Step, Task, decode

log = logging.getLogger("secfed.agent")

# Of a task, or of whether an attempt may begin: the next is refused alike until something here changes.
_LASTING = (PolicyRefused, ConfigError, BudgetExceeded, TranscriptError, RosterError)


@dataclass
class StudyHandler:
    """Handles one study's requests.

    ``withdrawn`` is why this site takes no more work of the study now; None while it does. The agent says so:
    were it counted as there, rounds would fail in vain, and the other sites pay for each of them.
    """

    folder: SiteFolder
    terms: Terms
    granted: Granted  # with which the study was opened
    opened: SiteStudy
    roster: Roster  # of the study
    pinned: Roster  # as it was when new work was last asked for; it may have more sites
    board: StatusBoard
    now: Callable[[], datetime]
    decisions: SiteDecisions
    pause: Callable[[float], bool] = lambda _seconds: True  # waits; True where the agent is to end
    withdrawn: SecfedError | None = None

    def handle(self, request: LinkRequest) -> Buffer:
        """Answer one request."""
        failpoint("agent: request arrived")
        frame = decode(request.frame)
        asks_anew = isinstance(frame, Task)
        try:
            if isinstance(frame, Task):
                self._check_permitted()
                self.board.set(policy_error=self.folder.policy.trouble or None)
                self.decisions.permits(self.terms.study, self.pinned)
                self._begin(round=frame.round, exchange=frame.exchange, stage="train")
            elif isinstance(frame, Step):
                if peek_type(frame.message) == Specification.TYPE:  # an attempt begins
                    asks_anew = True
                    self._still_granted(at_any_hour=True)
                    asks_anew = False  # what the site says of an attempt lasts no longer than the attempt
                self._begin(round=frame.round, stage=f"message {peek_type(frame.message)}")
            reply = self._answer(request, frame)
        except SecfedError as error:
            if (asks_anew and isinstance(error, _LASTING)) or is_full(error):
                self.withdrawn = error
            self.board.count(refusals=1)
            self.board.set(working=False, why=str(error))
            self.board.error(str(error))
            log.warning("request refused: %s", error, extra={"facts": {"kind": type(error).__name__}})
            self.decisions.refuses(self.terms, frame, error)
            raise
        self.board.count(bytes_up=len(reply), bytes_down=len(request.frame))
        self.board.set(working=False)
        failpoint("agent: before answer leaves")
        return reply

    def _check_permitted(self) -> None:
        """Refuse new work that this site's files, as they are now, do not permit; and take its budgets."""
        check_not_paused(self.folder.state)
        self.opened.set_budgets(self._still_granted().budgets)

    def _still_granted(self, *, at_any_hour: bool = False) -> Granted:
        """What this site's files, as they are now, grant; or refuse work, or the beginning of an attempt.

        The aggregator decides how long a study stays open, and when the work that is done is summed, so
        nothing that a person here changes may wait until it is opened again. Hours and a pause are no
        objection to an attempt: an exchange that was paid for is finished.
        """
        with own_files():
            self.pinned = self.folder.roster()
        check_still_pinned(self.roster, self.pinned)
        sites, now = len(self.roster.sites), self.now()
        granted = still_permitted(self.folder, self.terms.study, sites, now, at_any_hour=at_any_hour)
        if not granted.opens_like(self.granted):
            raise ConfigError(
                "policy.toml gives this study another data set or other limits than it was opened with",
                remedy="wait: the study is opened again with those of now",
            )
        return granted

    def _answer(self, request: LinkRequest, frame: object) -> Buffer:
        """What the site answers; a failure that nobody thought of is refused like any other."""
        act = partial(self.opened.site.handle, request.frame)
        try:
            if isinstance(frame, Notice) and peek_type(frame.message) == FinalModel.TYPE:
                return when_there_is_room(act, self.board, self.pause, self.opened.mend)
            return act()
        except SecfedError:
            raise
        except Exception as error:
            # Alike, whatever it is: an agent that died of it would answer nothing, and show that.
            log.exception("a request failed")
            raise SecfedError(
                f"a request failed with {type(error).__name__}",
                remedy="report it, with the agent's log, to whoever maintains secfed",
            ) from None

    def _begin(self, **facts: object) -> None:
        self.board.set(**facts, working=True, why=None, waits=None)
