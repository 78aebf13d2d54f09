"""What leaves a hospital when it refuses: a code and its fixed text, never the words of an error.

An error's message is for the hospital's own people. It may name files, limits of a policy or what a user's
own code wrote, and which error it is may depend on records. The aggregator gets one of these:

    a numbered refusal      its class and text; where it names sites, their names
    a class of the protocol a message that does not fit, without a number
    PolicyRefused           and the keys of the policy, if the policy decided
    BudgetExceeded          a privacy budget does not cover the work
    SecfedError             everything else, alike

The aggregator in turn records nothing else: what a hospital's software said in other words becomes the last.
"""

from __future__ import annotations

import re
from typing import Final

from secfed.crypto.refusals import Refusal
from secfed.errors import (
    BadSignature,
    BudgetExceeded,
    InconsistentView,
    MalformedMessage,
    PolicyRefused,
    ProtocolError,
    Replay,
    RosterError,
    SecfedError,
    UnmaskRefused,
    WrongState,
)

Code = tuple[str, str]  # class, text

_TEXTS: Final[dict[type[SecfedError], str]] = {
    MalformedMessage: "the message is not well formed",
    BadSignature: "a signature does not verify",
    RosterError: "the message belongs to another roster",
    WrongState: "the message does not fit what went before",
    Replay: "this was asked before",
    InconsistentView: "the message contradicts what this site knows of the study",
    UnmaskRefused: "shares are not given out for this",
    ProtocolError: "the protocol does not permit this",
    PolicyRefused: "this site does not take part",
    BudgetExceeded: "a privacy budget does not cover this",
    SecfedError: "this site cannot do this now",
}
OTHER: Final[Code] = (SecfedError.__name__, _TEXTS[SecfedError])

# Their detail is what was wrong with a message or a broadcast, in words.
_IN_WORDS: Final = (Refusal.MALFORMED, Refusal.BROADCAST_RANGE, Refusal.BROADCAST_SHAPE)
_NAMES: Final = re.compile(r" \(([a-z0-9][a-z0-9 ,._-]{0,199})\)")  # sites, keys of a policy, counts
_KEY: Final = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def outgoing(error: SecfedError) -> Code:
    """What may leave of an error."""
    refusal = Refusal.of(error)
    if refusal is not None:
        text = _numbered(refusal)
        named = _NAMES.match(error.message.removeprefix(text))
        return refusal.error.__name__, text + (named[0] if named and refusal not in _IN_WORDS else "")
    kind = next((one for one in _TEXTS if type(error) is one), SecfedError)
    keys = ", ".join(key for key in getattr(error, "keys", ()) if _KEY.fullmatch(key))
    return kind.__name__, _TEXTS[kind] + (f" ({keys[:199]})" if keys else "")


def recognised(kind: str, reason: str) -> Code:
    """What the aggregator takes of a hospital's words: a code of this list, or :data:`OTHER`."""
    for known, text in _CODES:
        rest = reason.removeprefix(text)
        if kind == known and reason.startswith(text) and (not rest or _NAMES.fullmatch(rest)):
            return kind, reason
    return OTHER


def _numbered(refusal: Refusal) -> str:
    return f"refusal {refusal.number}: {refusal.text}"


_CODES: Final[tuple[Code, ...]] = (
    *((one.error.__name__, _numbered(one)) for one in Refusal),
    *((kind.__name__, text) for kind, text in _TEXTS.items()),
)
