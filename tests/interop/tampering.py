"""What somebody can do to records: with no key, with a site's, with the aggregator's."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from secfed.crypto import labels
from secfed.crypto.codec import digest
from secfed.crypto.identity import Identity
from secfed.crypto.messages import FinalModel
from secfed.dp.ledger.ledger import SPENT
from secfed.records import hash_chain
from secfed.records.hash_chain import OPENED, canonical_json
from secfed.records.transcript import CLOSED, MODEL, RELEASED, SUMMED, TRANSCRIPT
from tests.interop.auditor_case import (
    OTHER,
    SITE,
    Body,
    Run,
    dropped,
    entries_of,
    flip,
    write,
)

MODEL_BYTES = b"the model"
NOISE = {"noise_multiplier"}


def _roster(run: Run, **changes: Any) -> None:
    path = run.path / "roster.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _spent(run: Run, change: Callable[[Body], object]) -> None:
    run.bodies(run.ledger, SPENT, change)


def _statement(change: Callable[[Body], object]) -> Callable[[Run], None]:
    return lambda run: _spent(run, lambda body: [change(one["spent"]) for one in body["after"]])


def _event(**changes: Any) -> Callable[[Run], None]:
    return lambda run: _spent(run, lambda body: body["event"].update(changes))


def _again(run: Run, path: Path, **changes: Any) -> None:
    def more(entries: list[tuple[str, Body]]) -> None:
        last = [body for kind, body in entries if kind == SUMMED][-1]
        entries.append((SUMMED, run.signed({**last, **changes})))

    run.resigned(path, more)


TAMPERING: dict[str, Callable[[Run], object]] = {
    # Bytes, by somebody without a key.
    "a byte of the aggregator's transcript": lambda run: flip(run, run.central),
    "a byte of a site's transcript": lambda run: flip(run, run.site),
    "a byte of a ledger": lambda run: flip(run, run.ledger),
    "a line removed": lambda run: run.lines(run.site, lambda x: [*x[:3], *x[4:]]),
    "a line repeated": lambda run: run.lines(run.site, lambda x: [*x[:3], x[2], *x[3:]]),
    "lines exchanged": lambda run: run.lines(run.ledger, lambda x: [x[0], x[2], x[1], *x[3:]]),
    "the first line removed": lambda run: run.lines(run.central, lambda x: x[1:]),
    "half of the last line": lambda run: run.lines(run.site, lambda x: [*x[:-1], x[-1][:50]]),
    "the last newline removed": lambda run: run.lines(run.ledger, lambda x: [*x[:-1], x[-1][:-1]]),
    "an empty line": lambda run: run.lines(run.site, lambda x: [*x, b"\n"]),
    "an empty file": lambda run: run.site.write_bytes(b""),
    "text behind the end": lambda run: run.lines(run.central, lambda x: [*x, b"{}\n"]),
    "a space in a line": lambda run: run.replaced(run.site, '{"body":', '{"body": '),
    "keys in another order": lambda run: run.lines(
        run.site, lambda x: [json.dumps(dict(reversed(json.loads(x[0]).items()))).encode() + b"\n", *x[1:]]
    ),
    "another spelling of a number": lambda run: run.replaced(run.ledger, '"seq":1,', '"seq":1.0,'),
    "upper-case hexadecimal": lambda run: run.lines(
        run.site, lambda x: [x[0].replace(*_hash_of(x[0])), *x[1:]]
    ),
    "carriage returns": lambda run: run.lines(run.site, lambda x: [y[:-1] + b"\r\n" for y in x]),
    "another site's transcript": lambda run: shutil.copy(
        run.path / "sites" / "st-anna" / "transcript.jsonl", run.site
    ),
    "a ledger's line in a transcript": lambda run: run.lines(
        run.site, lambda x: [*x, run.ledger.read_bytes().splitlines(keepends=True)[-1]]
    ),
    "the end of a site's transcript": lambda run: run.lines(run.other, lambda x: x[:-2]),
    "the end of the aggregator's transcript": lambda run: run.lines(run.central, lambda x: x[:-2]),
    "an older copy of a ledger": lambda run: run.lines(run.ledger, lambda x: x[:-1]),
    "a folder of a stranger": lambda run: shutil.copytree(
        run.site.parent, run.path / "sites" / "somebody-else"
    ),
    "the roster's digest": lambda run: _roster(run, digest="00" * 32),
    "the roster's aggregator": lambda run: _roster(run, aggregator="11" * 32),
    "a key of the roster": lambda run: run.replaced(
        run.path / "roster.json", run.case.roster.public(SITE).hex(), "22" * 32
    ),
    "two sites with one key": lambda run: _one_key(run),
    "one key more in an entry": lambda run: run.lines(
        run.site, lambda x: [_with(json.loads(x[0]), zero=0), *x[1:]]
    ),
    "a byte of the model": lambda run: flip(run, run.path / "model.safetensors"),
    "a byte of a site's model": lambda run: flip(run, run.site.parent / "model.safetensors"),
    "the end of the model": lambda run: (run.path / "model.safetensors").write_bytes(MODEL_BYTES[:-1]),
    "a metric in run.json": lambda run: run.replaced(run.path / "run.json", "0.75", "0.99"),
    # A transcript, by the site that signs it.
    "survivors at a site": lambda run: run.bodies(
        run.site, SUMMED, lambda body: body.update(survivors=body["survivors"][:2])
    ),
    "totals at a site": lambda run: run.bodies(run.site, SUMMED, lambda b: b.update(totals_digest="33" * 32)),
    "the round at a site": lambda run: run.bodies(run.site, SUMMED, lambda b: b.update(round=b["round"] + 5)),
    "the attempt at a site": lambda run: run.bodies(run.site, SUMMED, lambda b: b.update(attempt=3)),
    "the specification at a site": lambda run: run.bodies(
        run.site, SUMMED, lambda b: b.update(spec_digest="44" * 32)
    ),
    "the result's signature": lambda run: run.bodies(
        run.site, SUMMED, lambda b: b.update(result_signature="55" * 64)
    ),
    "a sum that never was": lambda run: _again(run, run.site, round=7, spec_digest="66" * 32),
    "a sum of others as one's own": lambda run: _again(run, run.site, survivors=["hospital-c", "st-anna"]),
    "a sum without its totals": lambda run: run.bodies(run.site, SUMMED, lambda b: b.pop("totals_digest")),
    "other settings": lambda run: run.bodies(run.site, "settings", lambda b: b.update(rounds=9)),
    "another study": lambda run: run.bodies(run.site, OPENED, lambda b: b.update(study="other")),
    "another roster": lambda run: run.bodies(run.site, OPENED, lambda b: b.update(roster_digest="77" * 32)),
    "another owner": lambda run: run.bodies(run.site, OPENED, lambda b: b.update(owner="st-anna")),
    "closed after more sums": lambda run: run.bodies(run.site, CLOSED, lambda b: b.update(sums=3)),
    "the exchange index at a site": lambda run: run.bodies(
        run.site, SUMMED, lambda b: b.update(exchange_index=1)
    ),
    "another model": lambda run: run.bodies(run.site, MODEL, lambda b: b.update(sha256="88" * 32)),
    "a model that was not given": lambda run: run.bodies(
        run.site, MODEL, lambda b: b.update(signature="99" * 64)
    ),
    "a head that no ledger had": lambda run: run.bodies(
        run.site, RELEASED, lambda b: b.update(ledgers={"wards": "aa" * 32})
    ),
    "a number left out in the count": lambda run: _skipping(run),
    "a line that is too long": lambda run: _too_long(run),
    # A ledger and the heads in its transcript, by the site that signs both.
    "a smaller epsilon": _statement(lambda s: s.update(epsilon=0.5 * s["epsilon"])),
    "a larger epsilon": _statement(lambda s: s.update(epsilon=1.5 * s["epsilon"])),
    "another relation": _statement(lambda s: s.update(adjacency="replace-record")),
    "more noise than there was": lambda run: _spent(
        run, lambda body: body["event"].update(dict.fromkeys(NOISE & set(body["event"]), 20.0))
    ),
    "an event that did not happen": _event(count=0),
    "an event that happened twice": lambda run: _spent(
        run, lambda body: body["event"].update(count=1 + (body["round"] == 2))
    ),
    "an unknown event": _event(event="nothing/1"),
    "an event with one field more": _event(more=1),
    "a payment removed": lambda run: run.resigned(run.ledger, dropped(SPENT, 0)),
    "a payment dated back": lambda run: _spent(run, lambda body: body.update(time_s=1)),
    "a budget raised afterwards": lambda run: _spent(
        run, lambda body: body["after"][0].update(epsilon=100.0)
    ),
    "a budget left out": lambda run: _spent(run, lambda body: body.update(after=body["after"][:1])),
    "more spent than allowed": lambda run: run.resigned(
        run.ledger, lambda entries: _limits(entries, epsilon=0.1)
    ),
    "no date": lambda run: _spent(run, lambda body: body.pop("time_s")),
    # One wrong thing and nothing else, by whoever would have to do it.
    "the hash of the last line": lambda run: run.lines(
        run.site, lambda x: [*x[:-1], _with(json.loads(x[-1]), hash="ee" * 32)]
    ),
    "a chain under a stranger's key": lambda run: write(
        run.site, Identity.from_seed(SITE, bytes([77]) * 32), TRANSCRIPT, entries_of(run.site)
    ),
    "another study, without a model": lambda run: run.resigned(
        run.site, lambda entries: (dropped(MODEL, 0)(entries), entries[0][1].update(study="other"))
    ),
    "two models, both signed": lambda run: run.bodies(run.site, MODEL, lambda b: _other_model(run, b)),
    "a stranger in a sum, no sites": lambda run: _alone(
        run, survivors=["nobody", SITE], cohort=["nobody", SITE]
    ),
    "two results of one exchange, no aggregator": lambda run: (
        run.central.unlink(),
        run.resigned(run.other, lambda entries: _other_result(run, entries)),
    ),
    "an exchange twice, no sites": lambda run: _alone(run, round=1),
    "a model after more sums, no sites": lambda run: (
        shutil.rmtree(run.path / "sites"),
        run.bodies(run.central, MODEL, lambda b: b.update(sums=3)),
    ),
    "a sum that the site is not in": lambda run: _not_in(run),
    # The aggregator's transcript, by the aggregator.
    "an exchange summed twice": lambda run: _again(run, run.central, spec_digest="bb" * 32),
    "a sum left out": lambda run: run.resigned(run.central, dropped(SUMMED, 0)),
    "a survivor who is a stranger": lambda run: _again(
        run, run.central, round=9, spec_digest="cc" * 32, survivors=["nobody", SITE]
    ),
    "a model after more sums": lambda run: run.bodies(run.central, MODEL, lambda b: b.update(sums=3)),
    "other metrics": lambda run: run.bodies(run.central, MODEL, lambda b: b.update(metrics="dd" * 32)),
}

# What the auditor's verifier looks at, and ours does not: the aggregator states it, beside the specification.
MORE: dict[str, Callable[[Run], object]] = {
    "a survivor from outside the cohort": lambda run: _alone(run, cohort=["hospital-c", "st-anna"]),
    "fewer survivors than the threshold": lambda run: _alone(run, threshold=9),
}

# What a record cannot show by itself, and who notices.
UNSEEN: dict[str, Callable[[Run], object]] = {
    # Only a head that was written down earlier shows it: the test below.
    "the ends of all records of a run that names no model": lambda run: [
        run.lines(path, lambda x: x[:2]) for path in (run.central, *run.path.glob("sites/*/transcript.jsonl"))
    ],
    # It is noted: the reader sees which hospitals are absent.
    "all records of a site": lambda run: shutil.rmtree(run.site.parent),
    # A site that was in a sum may not have got its result; it is noted.
    "a sum that a site leaves out": lambda run: run.resigned(
        run.site, lambda entries: (dropped(SUMMED, 0)(entries), entries[-1][1].update(sums=1))
    ),
}

CUT: dict[str, Callable[[Run], object]] = {
    "the closing entry of a site": lambda run: run.lines(run.site, lambda x: x[:-1]),
    "the closing entry of the aggregator": lambda run: run.lines(run.central, lambda x: x[:-1]),
    "the closing entries of all, as older versions had none": lambda run: [
        run.lines(path, lambda x: x[:-1])
        for path in (run.central, *run.path.glob("sites/*/transcript.jsonl"))
    ],
    "a closing entry before the last sum": lambda run: run.resigned(run.central, _closed_early),
}


def _with(entry: Body, **more: Any) -> bytes:
    return canonical_json({**entry, **more}) + b"\n"


def _one_key(run: Run) -> None:
    """With the digest that such a roster would have."""
    keys = {name: key.hex() for name, key in run.case.roster.members}
    keys["hospital-c"] = keys[SITE]
    members = b"".join(
        len(name).to_bytes(4, "big") + name.encode() + bytes.fromhex(keys[name]) for name in sorted(keys)
    )
    data = run.case.roster.aggregator + len(keys).to_bytes(4, "big") + members
    _roster(run, sites=keys, digest=digest(labels.ROSTER_DIGEST, data).hex())


def _skipping(run: Run) -> None:
    """The last line of a site's transcript, signed as if one stood before it."""
    lines = [json.loads(line) for line in run.site.read_bytes().splitlines()]
    last, owner = lines[-1], run.case.identities[SITE]
    last["seq"] += 1
    content = {"seq": last["seq"], "kind": last["kind"], "body": last["body"], "owner": SITE}
    last["hash"] = digest(labels.TRANSCRIPT_CHAIN, bytes.fromhex(last["prev"]), canonical_json(content)).hex()
    last["signature"] = owner.sign(labels.SIGN_TRANSCRIPT, bytes.fromhex(last["hash"])).hex()
    run.site.write_bytes(b"".join(_with(line) for line in lines))


def _too_long(run: Run) -> None:
    before, hash_chain.MAX_LINE_BYTES = hash_chain.MAX_LINE_BYTES, 1 << 22
    try:
        run.bodies(run.site, MODEL, lambda body: body.update(more="x" * (1 << 20)))
    finally:
        hash_chain.MAX_LINE_BYTES = before


def _other_model(run: Run, body: Body) -> None:
    """The aggregator gave this site another model than the others."""
    other = hashlib.sha256(b"another").digest()
    about = FinalModel("audited", run.case.roster.digest, 2, 2, other).body()
    signature = run.case.aggregator.sign(labels.SIGN_MODEL, about).hex()
    body.update(sha256=other.hex(), signature=signature)
    (run.site.parent / "model.safetensors").unlink(missing_ok=True)


def _more(run: Run, entries: list[tuple[str, Body]], **changes: Any) -> Body:
    """One more sum before the model, which counts it."""
    at = next(number for number, (kind, _) in enumerate(entries) if kind == MODEL)
    last = [body for kind, body in entries if kind == SUMMED][-1]
    made = run.signed({**last, "round": 3, "spec_digest": "bb" * 32, **changes})
    entries.insert(at, (SUMMED, made))
    for _, body in entries[at + 1 :]:
        body["sums"] += 1
    return made


def _alone(run: Run, **changes: Any) -> None:
    shutil.rmtree(run.path / "sites")
    run.resigned(run.central, lambda entries: _more(run, entries, **changes))


def _not_in(run: Run) -> None:
    """A sum of two others, in the transcripts of the aggregator and of this site; no models."""
    others: Body = {"survivors": ["hospital-c", "st-anna"]}
    for path in (run.central, run.site):
        run.resigned(path, lambda entries: (_more(run, entries, **others), dropped(MODEL, 0)(entries)))


def _other_result(run: Run, entries: list[tuple[str, Body]]) -> None:
    """The aggregator told this site of a sum over others."""
    last = [body for kind, body in entries if kind == SUMMED][-1]
    last.update(run.signed({**last, "spec_digest": "bb" * 32, "survivors": [OTHER, "st-anna"]}))


def _closed_early(entries: list[tuple[str, Body]]) -> None:
    """A run that was gone on with after its end, and not closed again."""
    closing = entries.pop()
    entries.insert([kind for kind, _ in entries].index(SUMMED) + 1, (CLOSED, {**closing[1], "sums": 1}))


def _hash_of(line: bytes) -> tuple[bytes, bytes]:
    text = json.loads(line)["hash"].encode()
    return text, text.upper()


def _limits(entries: list[tuple[str, Body]], epsilon: float) -> None:
    for kind, body in entries:
        for one in body.get("budgets" if kind == "budgets" else "after", []):
            one["epsilon"] = epsilon
