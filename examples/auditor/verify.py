"""An auditor's own verifier of the records of secfed; nothing of secfed is in it.

    python verify.py FOLDER [--roster FILE] [--digest HEX ...] [--seen HEAD ...]

Written from docs/records.md; needs Python 3.11, `cryptography`, and epsilon.py beside it. FOLDER is what
`secfed simulate --out` or `secfed aggregate` wrote, hospitals' records in it under `sites/`, or a hospital's
own state folder. Exit status: 0 verified, 1 something is wrong, 2 not checked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from epsilon import Wrong, check_payments

CHAINS = {"transcript": "transcript", "ledger": "ledger", "decisions": "decision log"}
MAX_LINE, MAX_INT, MAX_DEPTH = 1 << 20, 1 << 53, 16


@dataclass
class Report:
    """What was found."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    verified: list[str] = field(default_factory=list)
    epsilons: int = 0

    def problem(self, path: Path, line: int | None, why: str) -> None:
        """Add what is wrong, once."""
        text = f"{path}{f', line {line}' if line else ''}: {why}"
        if text not in self.problems:
            self.problems.append(text)


@dataclass
class Chain:
    """One verified chain."""

    path: Path
    owner: str
    entries: list[dict[str, Any]]

    def of(self, *kinds: str) -> list[tuple[int, dict[str, Any]]]:
        """Line and body of every entry of these kinds."""
        return [(e["seq"] + 1, e["body"]) for e in self.entries if e["kind"] in kinds]


# --- bytes, signatures, rosters (docs/records.md, 1 and 2) -----------------------------------------------


def digest(label: str, *parts: bytes) -> bytes:
    """SHA-256 over label and parts, each after its length as eight bytes."""
    state = hashlib.sha256()
    for part in (f"secfed/v1 {label}".encode(), *parts):
        state.update(len(part).to_bytes(8, "big") + part)
    return state.digest()


def signed(key: bytes, signature: bytes, label: str, *parts: bytes) -> bool:
    """Whether this key signed label and parts."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, digest(label, *parts))
    except (InvalidSignature, ValueError):
        return False
    return True


def text(value: str) -> bytes:
    """UTF-8 after its length as four bytes."""
    return len(value.encode()).to_bytes(4, "big") + value.encode()


def canonical(value: object, depth: int = MAX_DEPTH) -> bytes:
    """The one spelling of a JSON value; ValueError if it has none."""
    if depth == 0 or (isinstance(value, int) and abs(value) > MAX_INT):
        raise ValueError
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        canonical(part, depth - 1)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def unhex(value: object, size: int) -> bytes:
    """So many bytes in lower-case hexadecimal."""
    if not isinstance(value, str) or len(value) != 2 * size or set(value) - set("0123456789abcdef"):
        raise Wrong("a digest, key or signature is not lower-case hexadecimal of the right length")
    return bytes.fromhex(value)


@dataclass
class Roster:
    """The pinned keys."""

    digest: str
    aggregator: bytes
    sites: dict[str, bytes]


def read_roster(path: Path) -> Roster:
    """Read a roster file, and compute its digest."""
    content = json.loads(path.read_bytes())
    aggregator = unhex(content["aggregator"], 32)
    sites = {name: unhex(key, 32) for name, key in content["sites"].items()}
    if not sites or len({aggregator, *sites.values()}) != len(sites) + 1:
        raise Wrong("two members of the roster have one key, or it has none")
    members = b"".join(text(name) + sites[name] for name in sorted(sites))
    found = digest("roster digest", aggregator + len(sites).to_bytes(4, "big") + members).hex()
    if content["digest"] != found:
        raise Wrong("the digest it states is not that of its members")
    return Roster(found, aggregator, sites)


def read_chain(path: Path, what: str, keys: set[bytes], owner: str | None) -> Chain:
    """Verify a chain line by line, all under one of its owner's keys; Wrong names the first bad line."""
    entries: list[dict[str, Any]] = []
    head = bytes(32)
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        try:
            if len(line) > MAX_LINE:
                raise Wrong("the line is too long")
            entry = json.loads(line)
            if canonical(entry) + b"\n" != line:
                raise Wrong("incomplete, or not in canonical form")
            if set(entry) != {"seq", "prev", "kind", "body", "hash", "signature"}:
                raise Wrong("not an entry")
            body = entry["body"]
            if number == 1:
                owner = owner or body.get("owner")
                if body.get("owner") != owner or not isinstance(owner, str):
                    raise Wrong(f"it belongs to {body.get('owner')!r}")
            if entry["seq"] != number - 1 or isinstance(entry["seq"], bool):
                raise Wrong("a line is missing, repeated or out of order")
            if unhex(entry["prev"], 32) != head or (entry["kind"] == "opened") != (number == 1):
                raise Wrong("it does not follow from the line before")
            hashed = {"seq": entry["seq"], "kind": entry["kind"], "body": body, "owner": owner}
            head = digest(f"{CHAINS[what]} chain", head, canonical(hashed))
            if unhex(entry["hash"], 32) != head:
                raise Wrong("its content does not match its hash")
            label = f"sign {CHAINS[what]} entry"
            keys = {key for key in keys if signed(key, unhex(entry["signature"], 64), label, head)}
            if not keys:
                raise Wrong("its signature does not verify")
        except Wrong as error:
            raise Wrong(f"line {number}: {error}") from None
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            raise Wrong(f"line {number}: not a JSON entry in canonical form") from None
        entries.append(entry)
    if not entries:
        raise Wrong("there is no opening entry")
    return Chain(path, str(owner), entries)


# --- what was summed (docs/records.md, 3) ----------------------------------------------------------------


def sums_of(chain: Chain, roster: Roster, report: Report) -> dict[str, dict[str, Any]]:
    """Every sum by its specification, checked by itself."""
    found: dict[str, dict[str, Any]] = {}
    places = set()
    for line, body in chain.of("summed", "followed"):
        try:
            survivors, place = body["survivors"], (body["round"], body["exchange"])
            spec, totals = unhex(body["spec_digest"], 32), unhex(body["totals_digest"], 32)
            names = len(survivors).to_bytes(4, "big") + b"".join(map(text, survivors))
            signature = unhex(body["result_signature"], 64)
            if not signed(roster.aggregator, signature, "sign result", spec + names + totals):
                raise Wrong("the aggregator's signature over the result does not verify")
            if not set(survivors) <= set(roster.sites):
                raise Wrong("a survivor is not in the roster")
            if len(survivors) < body.get("threshold", 1) or not set(survivors) <= set(
                body.get("cohort", survivors)
            ):
                raise Wrong("survivors below the threshold, or from outside the cohort")
            if place in places:
                raise Wrong("this exchange was summed before")
            places.add(place)
            found[spec.hex()] = {**body, "line": line, "own": (line, body) in chain.of("summed")}
        except Wrong as error:
            report.problem(chain.path, line, str(error))
        except (KeyError, TypeError, AttributeError):
            report.problem(chain.path, line, "an entry about a sum is incomplete")
    return found


def compare(central: Chain, sites: list[Chain], roster: Roster, report: Report) -> None:
    """One run: what sites recorded stands in the aggregator's transcript."""
    main = sums_of(central, roster, report)
    opened = central.entries[0]["body"]
    settings = [body for _, body in central.of("settings")]
    for site in sites:
        if any(site.entries[0]["body"].get(key) != opened.get(key) for key in ("study", "roster_digest")):
            report.problem(site.path, 1, "opened for another study or roster than the aggregator's")
        if [body for _, body in site.of("settings")] != settings:
            report.problem(site.path, 2, "its settings differ from the aggregator's")
        own = sums_of(site, roster, report)
        for spec, body in own.items():
            if body["own"] and site.owner not in body["survivors"]:
                report.problem(site.path, body["line"], "this site is not among the survivors")
            known = main.get(spec)
            same = ["round", "exchange", "attempt", "survivors", "totals_digest"]
            same += ["exchange_index"] if "exchange_index" in body.keys() & (known or {}) else []
            if known is None or any(body.get(name) != known.get(name) for name in same):
                report.problem(site.path, body["line"], "the aggregator's transcript has no such sum")
        lost = sum(site.owner in body["survivors"] and spec not in own for spec, body in main.items())
        if lost:
            report.notes.append(f"{site.path}: lacks {lost} sums it is in: no result, or its end is cut off")
    check_models(central, sites, roster, report)
    check_ends([central, *sites], central, report)


def check_ends(chains: list[Chain], central: Chain | None, report: Report) -> None:
    """The end of a transcript is there by its own closing entry, or by what another one says."""
    told = [body.get("delivered") for _, body in central.of("closed")] if central else []
    given = {name for names in told if isinstance(names, list) for name in map(str, names)}
    for chain in chains:
        sums, closed = chain.of("summed", "followed"), chain.of("closed")
        if not closed or (sums and closed[-1][0] < sums[-1][0]):
            report.notes.append(f"{chain.path}: open: no closing entry proves that its end is there")
            continue
        line, body = closed[-1]
        if body.get("sums") != len(sums):
            report.problem(chain.path, line, f"closed after {body.get('sums')} sums; there are {len(sums)}")
    for chain in chains if central else []:
        models = [body for _, body in chain.of("model")]
        if chain is not central and chain.owner in given and not models:
            report.problem(chain.path, None, "cut off: the aggregator knows that this site has the model")
        if central and not central.of("model") and any("signature" in body for body in models):
            report.problem(central.path, None, f"cut off: it signed the model that {chain.owner} has")


def check_models(central: Chain, sites: list[Chain], roster: Roster, report: Report) -> None:
    """The model files are those that transcripts name; all name one; the metrics are those recorded."""
    named: dict[str, dict[str, Any]] = {}
    for chain in (central, *sites):
        if models := chain.of("model"):
            line, body = models[-1]
            named[chain.owner] = body
            if "signature" in body:
                values = (body["round"], body["sums"])
                about = text(str(chain.entries[0]["body"]["study"])) + bytes.fromhex(roster.digest)
                about += b"".join(value.to_bytes(4, "big") for value in values) + unhex(body["sha256"], 32)
                if not signed(roster.aggregator, unhex(body["signature"], 64), "sign final model", about):
                    report.problem(
                        chain.path, line, "the aggregator's signature over the model does not verify"
                    )
            counted = sum(chain is central or one < line for one, _ in chain.of("summed", "followed"))
            if chain is central and body["sums"] != counted:
                report.problem(chain.path, line, f"a model after {body['sums']} sums; there are {counted}")
    newest = max(named.values(), key=lambda body: int(body["sums"]), default=None)
    main = named.get(central.owner, newest)
    for chain in (central, *sites):
        body = named.get(chain.owner, main if chain is central else None)
        if body is None:
            continue
        same = [one for one in named.values() if one["sums"] == body["sums"]]
        if any(one["sha256"] != body["sha256"] for one in same) or (
            central.owner in named and body["sums"] != named[central.owner]["sums"]
        ):
            report.problem(chain.path, None, "names another model than other transcripts")
        path = chain.path.parent / "model.safetensors"
        if path.is_file():
            data = path.read_bytes()
            if (hashlib.sha256(data).hexdigest(), len(data)) != (body["sha256"], body["bytes"]):
                report.problem(path, None, "is not the model that the transcript names")
            else:
                report.verified.append(str(path))
    path = central.path.parent / "run.json"
    if path.is_file() and main is not None and main.get("metrics"):
        try:
            run = json.loads(path.read_bytes())
            rounds = {str(row.get("round")): row["metrics"] for row in run["rounds"] if row.get("metrics")}
            parts = {"initial": run.get("initial") or None, "rounds": rounds, "final": run.get("final", {})}
            may_lack = central.owner not in named and not any(parts.values())  # it reads no sums
            if not may_lack and hashlib.sha256(canonical(parts)).hexdigest() != main["metrics"]:
                report.problem(path, None, "its metrics are not those that the transcript names")
        except (ValueError, KeyError, TypeError, AttributeError):
            report.problem(path, None, "cannot be read")


# --- what was spent (docs/records.md, 4 and 5) -----------------------------------------------------------


def check_ledger(ledger: Chain, transcripts: list[Chain], report: Report) -> None:
    """Dates, budgets, every epsilon, and the heads that the site's transcripts recorded."""
    heads = {entry["hash"] for entry in ledger.entries}
    dataset = ledger.entries[0]["body"].get("dataset")
    for chain in transcripts:
        for line, body in chain.of("released", "summed", "followed", "moved"):
            head = (body.get("ledgers") or {}).get(dataset)
            if chain.owner == ledger.owner and head is not None and head not in heads:
                report.problem(ledger.path, None, f"lacks the state that {chain.path}, line {line} recorded")
    checked, wrong = check_payments(ledger.entries)
    report.epsilons += checked
    for line, why in wrong:
        report.problem(ledger.path, line, why)


def check_absent(transcripts: list[Chain], ledgers: list[Chain], asked: list[str], report: Report) -> None:
    """Say whose records are not here: nothing else shows that (docs/records.md, 7)."""
    if absent := [site for site in asked if site not in {chain.owner for chain in transcripts}]:
        report.notes.append(f"not here, or not verified: the transcripts of {', '.join(absent)}")
    there = {(ledger.owner, ledger.entries[0]["body"].get("dataset")) for ledger in ledgers}
    for chain in transcripts:
        found = [body.get("ledgers") or {} for _, body in chain.of("released", "summed", "followed", "moved")]
        for name in sorted({name for heads in found for name in heads}):
            if (chain.owner, name) not in there:
                report.notes.append(f"{chain.path}: its ledger {name!r} is not here, or not verified")


# --- the whole folder (docs/records.md, 6) ---------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Verify a folder."""
    parser = argparse.ArgumentParser(description="Verify the records of one run of secfed.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--roster", type=Path, help="the roster as you pinned it; default: the folder's")
    parser.add_argument("--digest", action="append", help="a roster's, as you were told it; no other counts")
    parser.add_argument("--seen", action="append", default=[], help="a head that an earlier report showed")
    given = parser.parse_args(arguments)
    folder, report = given.folder, Report()
    pinned = given.roster or folder / "roster.json"
    try:
        roster = read_roster(pinned)
        # Earlier ones count beside your own roster, or by digest; what was handed over is no reason to.
        kept = (pinned.parent / "pinned-rosters").glob("*.json") if given.roster or given.digest else ()
        read = (*map(read_roster, kept), roster)
        rosters = {one.digest: one for one in read if one.digest in (given.digest or [one.digest])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, Wrong) as error:
        print(f"not checked: {pinned}: {error}")
        return 2 if isinstance(error, OSError) else 1
    if roster.digest not in rosters:
        print(f"not verified: the roster's digest is {roster.digest}")
        return 1
    transcripts, ledgers = read_folder(folder, rosters, report)
    central = [chain for chain in transcripts if chain.path == folder / "transcript.jsonl"]
    if central:
        roster = rosters[central[0].entries[0]["body"]["roster_digest"]]
        compare(central[0], [chain for chain in transcripts if chain is not central[0]], roster, report)
    else:
        report.notes.append("the aggregator's transcript is not here; sites were not compared with it")
        first: dict[Any, Any] = {}
        for chain in transcripts:
            of = chain.entries[0]["body"]
            for body in sums_of(chain, rosters[of["roster_digest"]], report).values():
                place = of.get("study"), body["round"], body["exchange"]
                if first.setdefault(place, body["result_signature"]) != body["result_signature"]:
                    report.problem(chain.path, body["line"], "two hospitals hold different results of it")
        check_ends(transcripts, None, report)
    for ledger in ledgers:
        check_ledger(ledger, transcripts, report)
    check_absent(transcripts, ledgers, list(roster.sites) if central else [], report)
    heads = {entry["hash"] for chain in (*transcripts, *ledgers) for entry in chain.entries}
    for head in sorted(set(given.seen) - heads):
        report.problem(folder, None, f"no record has the head {head} that was shown earlier")
    for line in (*report.notes, *(f"WRONG: {problem}" for problem in report.problems)):
        print(line)
    print(f"{len(report.verified)} files, {report.epsilons} epsilons; roster {roster.digest}")
    print("not verified" if report.problems else "verified")
    return 1 if report.problems or not transcripts else 0


def read_folder(folder: Path, rosters: dict[str, Roster], report: Report) -> tuple[list[Chain], list[Chain]]:
    """Every chain under a folder that verifies: transcripts and ledgers."""
    transcripts, ledgers = [], []
    for path in sorted(folder.rglob("*.jsonl")):
        what = "ledger" if path.name.startswith("ledger-") else path.stem
        if what not in CHAINS:
            continue
        try:
            # The folder says whose records these are; where it does not, the first line does.
            first = json.loads(path.read_bytes().split(b"\n")[0])["body"]
            owner = path.parent.name if path.parent.parent.name == "sites" else None
            if owner is None and (what != "transcript" or path.parent != folder):
                owner = str(first["owner"])
            made_under = first["roster_digest"] if what == "transcript" else None
            those = [one for one in rosters.values() if made_under in (None, one.digest)]
            keys = {one.aggregator if owner is None else one.sites.get(owner, b"") for one in those} - {b""}
            if not keys:
                raise Wrong("opened for another roster, or by a site that the roster does not have")
            chain = read_chain(path, what, keys, owner)
            report.verified.append(str(path))
            {"transcript": transcripts, "ledger": ledgers}.get(what, []).append(chain)
        except Wrong as error:
            report.problem(path, None, str(error))
        except (OSError, ValueError, KeyError, TypeError):
            report.problem(path, None, "cannot be read")
    return transcripts, ledgers


if __name__ == "__main__":
    sys.exit(main())
