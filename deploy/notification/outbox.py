"""What was told, and what still has to be delivered: one small file that outlives the process.

A state is told when it begins, and again only after it was seen to be over. Its message is in the file before
the first attempt to deliver it, and leaves the file after a server took it: killed anywhere, the process
delivers it at least once. Where the file cannot be written, the log says so and the same holds in memory.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from secfed.config.schema import Strict, checked
from secfed.deploy.notification.message import Event, Message
from secfed.errors import ConfigError, SecfedError
from secfed.storage import private_files
from secfed.storage.failpoints import failpoint

log = logging.getLogger("secfed.notification")

OUTBOX_FILE: Final = "notifications.json"
KEPT_S: Final = 3 * 86_400  # then a message that no server took is given up
MOST_WAITING: Final = 50  # of one channel
MOST_A_DAY: Final = 20  # of one kind: an aggregator can offer as many studies as it likes
_MOST_TOLD: Final = 1000
_DAY_S: Final = 86_400


@dataclass(frozen=True)
class Seen:
    """What was found by one look.

    ``holds`` are the states that hold, by a key that names the state and not its details. What was told and
    is not among them is over if its key begins with one of ``over``; of other keys this look knows nothing.
    """

    holds: Mapping[str, Event] = field(default_factory=dict)
    over: Sequence[str] = ()

    def __add__(self, other: Seen) -> Seen:
        return Seen({**self.holds, **other.holds}, (*self.over, *other.over))


class _Waiting(Strict):
    channel: str = Field(description="the name of a channel")
    message: Message = Field(description="a message")


class _File(Strict):
    version: Literal[1] = Field(description="1")
    told: dict[str, int] = Field(description="a table of states, and since when they are told")
    recent: dict[str, tuple[int, ...]] = Field(description="a table of kinds, and when they were told")
    waiting: tuple[_Waiting, ...] = Field(description="what still has to be delivered")


class Outbox:
    """The file of one party; safe for several threads.

    Args:
        source: who tells, as a URI.
        channels: names of the channels that everything goes to.
        lost: called with the number of messages that were given up.
    """

    def __init__(
        self,
        path: Path,
        source: str,
        channels: Sequence[str],
        now: Callable[[], datetime],
        lost: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._path, self._source, self._channels = path, source, tuple(channels)
        self._now, self._lost = now, lost
        self._lock = threading.Lock()
        self._unwritten = False  # the last try failed, and the log says so
        kept = self._read()
        self._told, self._recent = dict(kept.told), {kind: list(at) for kind, at in kept.recent.items()}
        self._waiting = [item for item in kept.waiting if item.channel in self._channels]

    def note(self, seen: Seen) -> int:
        """Queue a message for each state that is new, and forget those that are over; how many are new."""
        with self._lock:
            over = [key for key in self._told if key not in seen.holds and key.startswith(tuple(seen.over))]
            new = [key for key in seen.holds if key not in self._told]
            if not over and not new:
                return 0
            for key in over:
                del self._told[key]
            now = self._now()
            for key in new:
                self._told[key] = int(now.timestamp())
                self._queue(seen.holds[key], now)
            self._drop([item for name in self._channels for item in self._of(name)[:-MOST_WAITING]])
            # What still holds is never forgotten: it would be told again with every look.
            for key in [key for key in self._told if key not in seen.holds][:-_MOST_TOLD]:
                del self._told[key]
            self._write()
        failpoint("notification: queued")
        return len(new)

    def next(self, channel: str) -> Message | None:
        """What to deliver next on a channel; None if nothing waits."""
        with self._lock:
            oldest_s = int(self._now().timestamp()) - KEPT_S
            self._drop([item for item in self._of(channel) if item.message.time_s < oldest_s], write=True)
            found = self._of(channel)
            return found[0].message if found else None

    def delivered(self, channel: str, message: Message) -> None:
        """A server took it."""
        failpoint("notification: delivered")
        with self._lock, suppress(ValueError):  # it may have been given up meanwhile
            self._waiting.remove(_Waiting(channel=channel, message=message))
            self._write()

    def failed(self, channel: str, message: Message) -> None:
        """No server took it: let others go first, as one that is never taken must not hold up all."""
        with self._lock, suppress(ValueError):
            item = _Waiting(channel=channel, message=message)
            self._waiting.remove(item)
            self._waiting.append(item)

    def waiting(self) -> Counter[str]:
        """How many messages wait, by channel."""
        with self._lock:
            return Counter(item.channel for item in self._waiting)

    def _queue(self, event: Event, now: datetime) -> None:
        now_s = int(now.timestamp())
        recent = self._recent[event.kind] = [
            at for at in self._recent.get(event.kind, ()) if now_s - _DAY_S < at <= now_s
        ]
        if len(recent) >= MOST_A_DAY:
            log.warning("more than %d of %s in a day: not sent: %s", MOST_A_DAY, event.kind, event.text)
            return
        recent.append(now_s)
        if len(recent) == MOST_A_DAY:
            more = "Further ones of this kind are not sent for a day; see the log."
            event = Event(event.kind, event.subject, f"{event.text}. {more}", event.remedy, event.facts)
        message = Message.of(event, self._source, now)
        self._waiting += [_Waiting(channel=name, message=message) for name in self._channels]

    def _of(self, channel: str) -> list[_Waiting]:
        return [item for item in self._waiting if item.channel == channel]

    def _drop(self, items: Iterable[_Waiting], *, write: bool = False) -> None:
        dropped = list(items)
        for item in dropped:
            self._waiting.remove(item)
            log.error("given up, as no server took it by %s: %s", item.channel, item.message.text)
        if dropped:
            self._lost(len(dropped))
            if write:
                self._write()

    def _read(self) -> _File:
        try:
            if self._path.exists():
                return checked(_File, private_files.read_json(self._path, "an outbox"), str(self._path))
        except SecfedError as error:  # at worst something is told twice
            log.warning("what was told before is not known, and may be told again: %s", error)
        return _File(version=1, told={}, recent={}, waiting=())

    def _write(self) -> None:
        recent = {kind: tuple(at) for kind, at in self._recent.items()}
        file = _File(version=1, told=self._told, recent=recent, waiting=tuple(self._waiting))
        try:
            private_files.replace(self._path, private_files.to_json(file.model_dump(mode="json")))
        except (ConfigError, OSError) as error:
            if not self._unwritten:  # once, not with every message for as long as the disk is full
                log.warning("what is told is not kept, and may be told again after a restart: %s", error)
            self._unwritten = True
        else:
            self._unwritten = False
