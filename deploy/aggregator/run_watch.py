"""What the people of the study centre should know of a run: it waits for long, or it has ended.

Read from the events that the operator's log has anyway: names of hospitals that are waited for, rounds and
times; never a hospital's own words, and nothing of a sum.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from secfed.config.schema import Strict
from secfed.config.toml_file import read_sections
from secfed.deploy.aggregator.measured_transport import Tell
from secfed.deploy.notification.channels import Channel, channels_of
from secfed.deploy.notification.message import Event
from secfed.deploy.notification.notifier import LOOK_S, Notifier
from secfed.deploy.notification.outbox import Outbox, Seen
from secfed.deploy.notification.settings import EmailSection, NotificationsSection, WebhookSection
from secfed.errors import RoundAborted, SecfedError, StudyStopped
from secfed.storage import private_files

log = logging.getLogger("secfed.notification")

SETTINGS_FILE: Final = "notifications.toml"  # in the consortium's folder
SOURCE: Final = "secfed:aggregator"
_OUTBOXES: Final = "notifications"  # a folder there: one file for each study


class CentreNotifications(NotificationsSection):
    """``[notifications]`` of a study centre."""

    stalled_s: float = Field(
        default=3600.0,
        ge=1,
        le=30 * 86_400,
        description="seconds that a run waits for hospitals before it is called stalled, from 1 to 2592000",
    )


class CentreSettings(Strict):
    """The whole file."""

    notifications: CentreNotifications = CentreNotifications()
    webhook: WebhookSection = WebhookSection()
    email: EmailSection = EmailSection()


Waits = tuple[float, dict[str, Any]]  # since when, and what was told
# By study id: in a queue each turn has a watch of its own, and waiting does not begin anew with it.
_WAITING: Final[dict[str, Waits]] = {}


class RunWatch:
    """Keeps the state of one run, as the events of the operator's log change it."""

    def __init__(
        self,
        study: str,
        stalled_s: float,
        clock: Callable[[], float] = time.monotonic,
        waits: Waits | None = None,
    ) -> None:
        self._study, self._stalled_s, self._clock = study, stalled_s, clock
        self._lock = threading.Lock()
        self._waits = waits
        self._ended: Event | None = None

    def heard(self, event: str, facts: dict[str, Any]) -> None:
        """An event of the operator's log."""
        with self._lock:
            if event == "waiting":
                since_s = self._clock() if self._waits is None else self._waits[0]
                self._waits = since_s, facts
            elif event in ("quorum", "finished", "stopped"):
                self._waits = None
            if event == "finished":
                self._ended = self._end(
                    "finished", "has ended", "secfed aggregate says where its results are"
                )

    def failed(self, error: SecfedError) -> None:
        """The run ended with an error."""
        if isinstance(error, StudyStopped):
            self._ended = self._end(
                "stopped",
                "was stopped: its next rounds could come to no sum",
                "its log says why; the same command goes on, or ends it with --end",
            )
        elif isinstance(error, RoundAborted):
            self._ended = self._end("aborted", "has ended without a sum", error.remedy)

    @property
    def waits(self) -> Waits | None:
        """Since when it waits, and for what; None if it does not."""
        with self._lock:
            return self._waits

    def look(self) -> Seen:
        """What holds now."""
        with self._lock:
            waits, ended = self._waits, self._ended
        holds = {} if ended is None else {f"ended/{ended.facts['how']}": ended}
        if waits is None:
            return Seen(holds, ("stalled",))
        since_s, facts = waits
        waited_s = self._clock() - since_s
        if waited_s >= self._stalled_s:
            missing = ", ".join(facts.get("why", {}))
            holds["stalled"] = Event(
                "run.stalled",
                self._study,
                f"study {self._study} has waited for hospitals for {waited_s / 60:.0f} minutes in round "
                f"{facts['round']} of {facts['rounds']}: {missing}",
                "the events waiting of secfed aggregate say what is seen of each",
                {"study": self._study, "round": facts["round"], "missing": missing},
            )
        return Seen(holds)

    def _end(self, how: str, text: str, remedy: str) -> Event:
        facts = {"study": self._study, "how": how}
        return Event("run.ended", self._study, f"study {self._study} {text}", remedy, facts)


def centre_settings(folder: Path) -> CentreSettings:
    """What the study centre's file says; the defaults, which tell nobody, where there is none."""
    path = folder / SETTINGS_FILE
    return (
        read_sections(path, "settings of notifications", CentreSettings)
        if path.exists()
        else CentreSettings()
    )


def centre_channels(folder: Path) -> tuple[Channel, ...]:
    """The ways that the file names; ``ConfigError`` where one cannot be used."""
    settings = centre_settings(folder)
    return channels_of(folder, settings.notifications, settings.webhook, settings.email)


class PeopleTold:
    """While it is entered, people are told of one run, if the consortium's folder says whom."""

    def __init__(self, folder: Path, study: str, study_id: str, look_s: float = LOOK_S) -> None:
        self._folder, self._study_id, self._look_s = folder, study_id, look_s
        self._study = study
        self._watch: RunWatch | None = None
        self._notifier: Notifier | None = None

    def hearing(self, tell: Tell) -> Tell:
        """What the events of the operator's log pass through."""

        def heard(event: str, **facts: Any) -> None:
            if self._watch is not None:
                self._watch.heard(event, facts)
            tell(event, **facts)

        return heard

    def __enter__(self) -> None:
        """Begin."""
        try:
            settings, channels = centre_settings(self._folder), centre_channels(self._folder)
            if channels:
                private_files.make_folder(self._folder / _OUTBOXES)
        except SecfedError as error:  # the run goes on without
            log.error("nobody is told of anything: %s", error)
            return
        if channels:
            waits = _WAITING.pop(self._study_id, None)
            self._watch = RunWatch(self._study, settings.notifications.stalled_s, waits=waits)
            path = self._folder / _OUTBOXES / f"{self._study_id}.json"
            outbox = Outbox(path, SOURCE, [one.name for one in channels], lambda: datetime.now(UTC))
            self._notifier = Notifier(outbox, channels, self._watch.look, look_s=self._look_s)
            self._notifier.start()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Tell how the run ended, and end."""
        if self._watch is not None:
            if isinstance(error, SecfedError):
                self._watch.failed(error)
            if (waits := self._watch.waits) is not None:
                _WAITING[self._study_id] = waits
        if self._notifier is not None:
            self._notifier.close()
