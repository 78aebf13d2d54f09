"""The morning after: what has to be true of every folder, whatever befell its owner."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from secfed.audit.privacy import make_report
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.dp.ledger.ledger import LEDGER, SPENT
from secfed.records.chain_file import verify_file
from secfed.records.roster_file import ROSTER_FILE, read_roster
from secfed.records.transcript import CLOSED, MODEL, SUMMED, TRANSCRIPT
from secfed.runs.run_folder import MODEL_FILE, TRANSCRIPT_FILE, ledger_file
from tests.conftest import ROOT
from tests.deploy.night_consortium import DATA, STUDIES, TOO_MUCH, Consortium, NightStudy

AUDITOR: Final = ROOT / "examples" / "auditor" / "verify.py"

Place = tuple[str, int, str]  # study, round, exchange


@dataclass
class Morning:
    """What was found.

    Attributes:
        problems: what must not be.
        studies: how each ended.
        payments: of each hospital's folder: how many, how many of them for sums it is in, and epsilon.
    """

    problems: list[str] = field(default_factory=list)
    studies: dict[str, str] = field(default_factory=dict)
    payments: dict[str, dict[str, Any]] = field(default_factory=dict)
    verified: int = 0


def look(night: Consortium, findings: list[str]) -> Morning:
    """Check everything; ``findings`` are problems that are known."""
    morning = Morning(problems=list(findings))
    for study in STUDIES:
        morning.studies[study.name] = _ending(night, study, morning.problems)
    for name, site in night.site_folders:
        _check_budget(night, name, site, morning)
    _audit(night, morning)
    return morning


def _ending(night: Consortium, study: NightStudy, problems: list[str]) -> str:
    """How a study ended, and whether every hospital of it has its model."""
    out = night.out(study)
    if study.refused:
        if night.sums(study):
            problems.append(f"{study.name} was to be refused, and has sums")
        if not night.is_refused():
            problems.append(f"{study.name} was refused by {night.refusing()} only")
        return "refused before payment"
    if not night.is_over(study) or not (out / "run.json").is_file():
        problems.append(f"{study.name} is not finished")
        return "not finished"
    key = read_roster(out / ROSTER_FILE).aggregator
    entries = verify_file(out / TRANSCRIPT_FILE, key, TRANSCRIPT)
    sums = [entry.body for entry in entries if entry.kind == SUMMED]
    places = Counter((body["round"], body["exchange"]) for body in sums)
    problems += [
        f"{study.name}: {place} was summed {count} times" for place, count in places.items() if count > 1
    ]
    models, older = dict[str, bytes](), dict[str, int]()
    for name, site in night.site_folders:
        for path in (site / "state" / "studies").glob(f"{study.name}-*/{MODEL_FILE}"):
            models[name] = path.read_bytes()
            # Of closed sums it makes the model itself: away for the last, it has an older one, and says so.
            taken = _named_sums(path.parent / TRANSCRIPT_FILE, SiteFolder(site).request().identity_key, name)
            if study.reveal == "sites" and taken < len(sums):
                older[name] = taken
    there, without = set(models), ""
    wanted = {f"hospital-{number}" for number in range(1, study.sites + 1)}
    if study.reveal == "aggregator":
        models["centre"] = (out / MODEL_FILE).read_bytes()
        delivered = {name for entry in entries if entry.kind == CLOSED for name in entry.body["delivered"]}
        # Who cannot work when a study ends gets no model, and both sides know it (docs/operators.md).
        without = ", ".join(sorted(wanted - there))
        wanted = delivered
    if lacking := wanted - there:
        problems.append(f"{study.name}: {', '.join(sorted(lacking))} should have the model")
    if len({model for name, model in models.items() if name not in older}) > 1:
        problems.append(f"{study.name}: the models differ")
    problems += [
        f"{study.name}: {name} has an older model, and its log does not say so"
        for name in older
        if "the model is the one after round" not in night.hospitals[name].said_since(0)
    ]
    told = f"; {without} could not work when it ended, and has no model" if without else ""
    told += "".join(f"; {name} has the model after {taken} of them" for name, taken in older.items())
    return f"finished with {len(sums)} of {study.rounds + 1} sums{told}"


def _named_sums(transcript: Path, public: bytes, owner: str) -> int:
    """Sums in the model that a hospital's transcript names."""
    entries = verify_file(transcript, public, TRANSCRIPT, owner=owner)
    return max((int(entry.body["sums"]) for entry in entries if entry.kind == MODEL), default=0)


def _check_budget(night: Consortium, name: str, site: Path, morning: Morning) -> None:
    """All that transcripts prove was summed is paid for, nothing twice, and nothing of what is refused."""
    label, state, public = (
        str(site.relative_to(night.folder)),
        site / "state",
        SiteFolder(site).request().identity_key,
    )
    ledger = ledger_file(state, DATA)
    entries = verify_file(ledger, public, LEDGER, owner=name) if ledger.is_file() else ()
    spent = [entry for entry in entries if entry.kind == SPENT]
    paid = Counter(_place(entry.body, str(entry.body["study"])) for entry in spent)
    summed: set[Place] = set()
    for study in STUDIES:
        chains = [
            verify_file(path, public, TRANSCRIPT, owner=name)
            for path in (state / "studies").glob(f"{study.name}-*/{TRANSCRIPT_FILE}")
        ]
        central, roster = night.out(study) / TRANSCRIPT_FILE, night.out(study) / ROSTER_FILE
        # The aggregator's record counts, too: a site that lost the result has paid for the sum all the same.
        if central.is_file() and dict(read_roster(roster).members).get(name) == public:
            chains.append(verify_file(central, read_roster(roster).aggregator, TRANSCRIPT))
        for chain in chains:
            summed |= {
                _place(entry.body, str(chain[0].body["study"]))
                for entry in chain
                if entry.kind == SUMMED
                and name in entry.body["survivors"]
                and entry.body["round"] <= study.rounds
            }
    found = [f"paid {count} times for {place}" for place, count in paid.items() if count > 1]
    found += [f"has not paid for {place}, and is in its sum" for place in sorted(summed - set(paid))]
    found += [f"paid for {place}" for place in sorted(paid) if place[0].startswith(f"{TOO_MUCH.name}-")]
    morning.problems += [f"{label}: {problem}" for problem in found]
    left = [item["spent"]["epsilon"] for item in spent[-1].body["after"]] if spent else []
    morning.payments[label] = {
        "payments": len(spent),
        "of them in sums": len(summed & set(paid)),
        "epsilon": max(left, default=0.0),
    }


def _place(body: Any, study: str) -> Place:
    return study, int(body["round"]), str(body["exchange"])


def _audit(night: Consortium, morning: Morning) -> None:
    """``secfed audit verify`` over all folders together and each alone; the auditor's own on each."""
    roster = night.centre_folder / "roster.json"
    runs = [night.out(study) for study in STUDIES if (night.out(study) / TRANSCRIPT_FILE).is_file()]
    sites = [(site / "state", site / "pinned-roster.json") for _, site in night.site_folders]
    folders = [(run, roster) for run in runs] + sites
    together = make_report([*runs, *(state for state, _ in sites)], [roster, *(path for _, path in sites)])
    for folders_of, report in [("all folders", together)] + [
        (str(folder.relative_to(night.folder)), make_report([folder], [path])) for folder, path in folders
    ]:
        if report.verification.verified:
            morning.verified += 1
        else:
            found = "; ".join(map(str, report.verification.problems)) or "does not verify"
            morning.problems.append(f"secfed audit verify, {folders_of}: {found}")
    for folder, path in folders:
        command = [sys.executable, str(AUDITOR), str(folder), "--roster", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            morning.verified += 1
        else:
            morning.problems.append(
                f"verify.py {folder.relative_to(night.folder)}: {done.stdout.strip()[-600:]}"
            )
