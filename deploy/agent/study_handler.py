"""Answers one study's requests: still permitted? then the site works; what is refused is recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Roster
from secfed.crypto.messages import peek_type
from secfed.deploy.admission.admission import still_permitted
from secfed.deploy.admission.decision_recorder import SiteDecisions
from secfed.deploy.agent.control import check_not_paused
from secfed.deploy.agent.status import StatusBoard
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.transport.client import LinkRequest
from secfed.errors import BudgetExceeded, ConfigError, PolicyRefused, SecfedError, TranscriptError
from secfed.site.runtime import SiteStudy
from secfed.site.terms import Terms
from secfed.storage.failpoints import failpoint
from secfed.wire.frames import Step, Task, decode

log = logging.getLogger("secfed.agent")

# Of a task: the next one would be refused alike, until something here changes.
_LASTING = (PolicyRefused, ConfigError, BudgetExceeded, TranscriptError)


@dataclass
class StudyHandler:
    """Handles one study's requests.

    ``withdrawn`` is why this site takes no more work of the study now; None while it does. The agent says so:
    were it counted as there, rounds would fail in vain, and the other sites pay for each of them.
    """

    folder: SiteFolder
    terms: Terms
    opened: SiteStudy
    roster: Roster  # of the study
    pinned: Roster  # which may have more sites by now
    board: StatusBoard
    now: Callable[[], datetime]
    decisions: SiteDecisions
    withdrawn: SecfedError | None = None

    def handle(self, request: LinkRequest) -> Buffer:
        """Answer one request."""
        failpoint("agent: request arrived")
        frame = decode(request.frame)
        try:
            if isinstance(frame, Task):
                check_not_paused(self.folder.state)
                still_permitted(self.folder, self.terms.study, len(self.roster.sites), self.now())
                self.board.set(policy_error=self.folder.policy.trouble or None)
                self.decisions.permits(self.terms.study, self.pinned)
                self._begin(round=frame.round, exchange=frame.exchange, stage="train")
            elif isinstance(frame, Step):
                self._begin(round=frame.round, stage=f"message {peek_type(frame.message)}")
            reply = self._answer(request)
        except SecfedError as error:
            if isinstance(frame, Task) and isinstance(error, _LASTING):
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

    def _answer(self, request: LinkRequest) -> Buffer:
        """What the site answers; a failure that nobody thought of is refused like any other."""
        try:
            return self.opened.site.handle(request.frame)
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
