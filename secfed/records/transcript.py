"""Transcripts: what was summed, over whom, recorded at the aggregator and at every site.

Each party keeps its own signed hash chain (:mod:`secfed.records.hash_chain`). Entries of kind :data:`SUMMED`
are what two transcripts are compared by; see :mod:`secfed.audit.transcript_check`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from secfed.crypto import labels
from secfed.crypto.identity import SIGNATURE_BYTES, Identity
from secfed.crypto.identity import verify as verify_signature
from secfed.crypto.messages import DIGEST_BYTES, Result, Specification
from secfed.errors import TranscriptError
from secfed.records.chain_file import ChainFile, torn_summary
from secfed.records.hash_chain import OPENED, Chain, ChainType, Entry, Sink, plain
from secfed.storage.code_digest import code_digest

TRANSCRIPT = ChainType("transcript", labels.TRANSCRIPT_CHAIN, labels.SIGN_TRANSCRIPT)

# Kinds of entries. OPENED comes from the chain itself.
SETTINGS = "settings"  # what the study asks for: algorithm, protection, rounds, sites, privacy
SUMMED = "summed"  # one finished secure sum: a SumRecord
RELEASED = "released"  # shares are about to leave for the sum over these survivors
FOLLOWED = "followed"  # a sum that this site took into its state without being in it: a SumRecord
MOVED = "moved"  # the study works on another data set from here on: heads of the ledgers that it leaves
COMPLAINED = "complained"  # this site names sites whose envelopes for it are invalid
ABORTED = "aborted"  # an exchange that was given up
STOPPED = "stopped"  # the sums say that training is over after this round: the others are left out
REFUSED = "refused"  # a message this party would not answer, with the refusal's number
MODEL = "model"  # the finished model, by its digest: a ModelRecord (model_record.py)
CLOSED = "closed"  # the study is over for this party: so many sums stand before, and no more will come
RECOVERED = "recovered"  # an unfinished last line was dropped after a crash
_SUMS = SUMMED, FOLLOWED


class Log(Protocol):
    """Where a party records what it took part in."""

    def append(self, kind: str, body: Mapping[str, object]) -> object:
        """Append one entry, durably."""
        ...


class Transcript:
    """One party's transcript; the first entry names study, owner and roster.

    ``sink`` is a path (created, or verified and continued), a callable that takes each line, or None.
    ``BrokenChain``: the existing file does not verify; ``TranscriptError``: it belongs to another owner,
    study or roster, or cannot be written. Security: an entry is on the disk when :meth:`append` returns.
    Bodies hold digests, names and counts, never a value of a single site; the caller owes that.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        study: str,
        roster_digest: bytes,
        sink: Path | Sink | None = None,
        open_file: Callable[[Path], ChainFile] = ChainFile,
    ) -> None:
        opening = {"owner": identity.name, "study": study, "roster_digest": roster_digest.hex()}
        self._identity, self._open_file = identity, open_file
        self._file: ChainFile | None = None
        entries: tuple[Entry, ...] = ()
        torn = b""
        if isinstance(sink, Path):
            path, self._file = sink, open_file(sink)
            try:
                entries, torn = self._file.recover(identity.public_bytes, TRANSCRIPT, owner=identity.name)
                _check_opening(path, entries, opening)
            except TranscriptError:
                self._file.close()
                raise
            sink = self._file.append
        self._chain = Chain(identity, TRANSCRIPT, sink=sink, entries=entries)
        self._sums = sum(entry.kind in _SUMS for entry in entries)
        if not entries:
            self._chain.append(OPENED, opening)
        if torn:
            self._chain.append(RECOVERED, torn_summary(torn))

    @property
    def head(self) -> bytes:
        """Hash of the last entry: commits to the whole transcript."""
        return self._chain.head

    def __len__(self) -> int:
        return len(self._chain)

    def append(self, kind: str, body: Mapping[str, Any]) -> Entry:
        """Add one entry; see :meth:`secfed.records.hash_chain.Chain.append`."""
        entry = self._chain.append(kind, body)
        self._sums += kind in _SUMS
        return entry

    def closing(self, **more: object) -> dict[str, object]:
        """Body of the :data:`CLOSED` entry that would stand here."""
        return {"sums": self._sums, "build": code_digest(), **more}

    def mend(self) -> None:
        """After a write that failed, open the file again and verify it, so that entries can be added.

        ``TranscriptError``: that failed, too, or the file does not hold exactly what was added.
        """
        failed, owner = self._file, self._identity
        if failed is None or not failed.has_failed:
            return
        failed.close()  # and its lock
        file = self._open_file(failed.path)
        try:
            entries, torn = file.recover(owner.public_bytes, TRANSCRIPT, owner=owner.name)
            if not entries or entries[-1].hash != self.head:
                raise TranscriptError(
                    f"{file.path}: after a failed write it ends with another entry.",
                    remedy="restart: the file is verified, and continued where it ends",
                )
            chain = Chain(owner, TRANSCRIPT, sink=file.append, entries=entries)
            if torn:
                chain.append(RECOVERED, torn_summary(torn))
        except TranscriptError:
            file.close()
            raise
        self._file, self._chain = file, chain

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def closing(entries: Sequence[Entry]) -> Mapping[str, Any] | None:
    """What closes a transcript; None while it is open. A sum behind a closing entry opens it again."""
    for entry in reversed(entries):
        if entry.kind in (*_SUMS, CLOSED):
            return entry.body if entry.kind == CLOSED else None
    return None


@dataclass(frozen=True)
class Complaint:
    """What a site says about envelopes of others; it follows from messages, never from records."""

    round: int  # counted from 1
    exchange: str  # its name within the round
    attempt: int  # counted from 0
    of: tuple[str, ...]  # senders of the invalid envelopes, in roster order

    def to_body(self) -> dict[str, Any]:
        """Body of a :data:`COMPLAINED` entry."""
        return plain(self)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Complaint:
        """Read a body that this process made."""
        return cls(body["round"], body["exchange"], body["attempt"], tuple(body["of"]))

    @property
    def place(self) -> tuple[int, str, int]:
        """Round, exchange and attempt."""
        return self.round, self.exchange, self.attempt

    def __str__(self) -> str:
        whose = ", ".join(self.of)
        return f"round {self.round}, exchange {self.exchange!r}: a complaint about the envelope of {whose}"


def _check_opening(path: Path, entries: tuple[Entry, ...], opening: Mapping[str, str]) -> None:
    for name, value in opening.items():
        if entries and entries[0].body.get(name) != value:
            raise TranscriptError(
                f"{path}: opened for another {name.replace('_', ' ')}.",
                remedy="a study that has begun keeps its roster: begin it anew under another name"
                if name == "roster_digest"
                else "give each study its own transcript file",
            )


@dataclass(frozen=True)
class SumRecord:
    """One finished secure sum, as the aggregator and every survivor record it."""

    round: int  # counted from 1
    exchange: str  # its name within the round
    attempt: int  # counted from 0
    spec_digest: bytes  # commits to study, cohort, threshold, roster, layout and broadcast; 32 bytes
    survivors: tuple[str, ...]  # sites in the sum, in roster order
    totals_digest: bytes  # of the summed integers; 32 bytes
    result_signature: bytes  # the aggregator's, over the three fields above; 64 bytes
    exchange_index: int | None = None  # from 0, within the round; versions up to 0.1 did not record it

    @classmethod
    def of(cls, spec: Specification, result: Result) -> SumRecord:
        """The record of one attempt, from its first and its last message."""
        signed = result.spec_digest, result.survivors, result.totals_digest, result.signature
        return cls(spec.round, spec.exchange, spec.attempt, *signed, spec.exchange_index)

    def to_body(self) -> dict[str, Any]:
        """Body of a :data:`SUMMED` entry."""
        body = plain(self)
        if self.exchange_index is None:
            del body["exchange_index"]
        return body

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> SumRecord:
        """Read a body; further keys are allowed and ignored.

        ``TranscriptError``: a missing key or a wrong type.
        """
        where = tuple(body.get(name) for name in ("round", "exchange", "attempt"))
        index = body.get("exchange_index")
        if index is not None and type(index) is not int:
            raise TranscriptError("an entry about a sum has an exchange index that is no number")
        digests = tuple(body.get(name) for name in ("spec_digest", "totals_digest", "result_signature"))
        match where, body.get("survivors"):
            case (int(number), str(exchange), int(attempt)), list(sites):
                pass
            case _:
                raise TranscriptError("an entry about a sum is incomplete")
        if not all(isinstance(text, str) for text in (*digests, *sites)):
            raise TranscriptError("an entry about a sum has a value of the wrong type")
        try:
            spec, totals, signature = (bytes.fromhex(str(text)) for text in digests)
        except ValueError:
            raise TranscriptError("an entry about a sum has a digest that is not hexadecimal") from None
        if (len(spec), len(totals), len(signature)) != (DIGEST_BYTES, DIGEST_BYTES, SIGNATURE_BYTES):
            raise TranscriptError("an entry about a sum has a digest of the wrong length")
        return cls(number, exchange, attempt, spec, tuple(sites), totals, signature, index)

    def check_signature(self, aggregator: bytes) -> None:
        """Check the aggregator's own signature over this result."""
        body = Result(self.spec_digest, self.survivors, self.totals_digest).body()
        verify_signature(aggregator, self.result_signature, labels.SIGN_RESULT, body, who="aggregator")
