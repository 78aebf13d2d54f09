"""Transcripts of an audit: verified, put together run by run, and compared with each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from secfed.audit.model_check import Party
from secfed.audit.privacy.files import Source
from secfed.audit.privacy.findings import (
    AGGREGATOR,
    AuditedRun,
    Believed,
    CheckedFolder,
    VerifiedRecord,
    settings_of,
    verify_source,
)
from secfed.audit.transcript_check import compare_run
from secfed.records.hash_chain import BadlySigned
from secfed.records.transcript import SUMMED, TRANSCRIPT


def check_transcripts(state: CheckedFolder, believed: Believed) -> None:
    """Verify every transcript, and every run of them."""
    for source in state.found.transcripts:
        _transcript(state, believed, source)
    _join(state)
    for run in state.runs:
        _check_run(state, run)


def _transcript(state: CheckedFolder, believed: Believed, source: Source) -> None:
    """Route one transcript to its run; the first line's claims choose the key and are then verified."""
    rosters = believed.rosters_for(source)
    stated = str(source.claims.get("roster_digest", ""))
    if not rosters:
        state.unknown_roster(source.path, stated)
        state.chains.append(VerifiedRecord(source, "?", b"", ()))
        return
    roster = rosters[0]
    claimed = str(source.claims.get("owner", ""))
    owner = source.named_site or (claimed if claimed in roster.sites else AGGREGATOR)
    is_here = stated == roster.digest.hex()
    if owner != AGGREGATOR and owner not in roster.sites:
        if is_here:
            state.problem(source.path, None, "the roster has no such site")
        else:
            state.unknown_roster(source.path, stated)
        state.chains.append(VerifiedRecord(source, owner, b"", ()))
        return
    public = roster.aggregator if owner == AGGREGATOR else roster.public(owner)
    entries, broken = verify_source(source, TRANSCRIPT, public, None if owner == AGGREGATOR else owner)
    if not is_here and (broken is None or (isinstance(broken, BadlySigned) and broken.line == 1)):
        # A whole first line that names another roster: what is missing is that roster, with its keys.
        state.unknown_roster(source.path, stated)
        state.chains.append(VerifiedRecord(source, owner, b"", ()))
        return
    if broken is not None:
        state.problem(source.path, broken.line, broken.why)
    believed.use(roster)
    chain = VerifiedRecord(source, owner, public, entries)
    state.chains.append(chain)
    study = str(entries[0].body.get("study", "")) if entries else str(source.claims.get("study", ""))
    run = AuditedRun(study, roster, chain if owner == AGGREGATOR else None)
    if owner != AGGREGATOR:
        run.sites[owner] = chain
    state.runs.append(run)


def _join(state: CheckedFolder) -> None:
    """One run per set of transcripts that belong together.

    First those of one folder; then hospitals' own folders join the run whose aggregator recorded one of
    their sums, or else the first run of that study and roster that lacks them.
    """
    by_folder: dict[Path, AuditedRun] = {}
    for run in state.runs:
        chain = run.central or next(iter(run.sites.values()))
        known = by_folder.setdefault(chain.source.run_folder, run)
        known.central = known.central or run.central
        known.sites.update(run.sites)
        if run.central is not None:
            known.study = run.study
    whole = [run for run in by_folder.values() if run.central is not None]
    for run in (run for run in by_folder.values() if run.central is None):
        ((site, chain),) = list(run.sites.items())[:1]
        fits = [
            other
            for other in whole
            if (other.study, other.roster) == (run.study, run.roster) and site not in other.sites
        ]
        fits.sort(key=lambda other: not (_specs(other.central) & _specs(chain)))
        if fits:
            fits[0].sites.update(run.sites)
        else:
            whole.append(run)
    state.runs = whole


def _specs(chain: VerifiedRecord | None) -> set[object]:
    return {
        entry.body.get("spec_digest") for entry in (chain.entries if chain else ()) if entry.kind == SUMMED
    }


def _check_run(state: CheckedFolder, run: AuditedRun) -> None:
    """Compare the transcripts of a run, and the models beside them."""
    central = Party(AGGREGATOR, run.central.source.path if run.central else Path(), ())
    if run.central is not None:
        central = replace(central, entries=run.central.entries)
    sites = [Party(site, chain.source.path, chain.entries) for site, chain in run.sites.items()]
    problems, run.models, notes = compare_run(central, sites, run.roster)
    state.notes.extend(f"{note.path}: {note.why}" for note in notes)
    for problem in problems:
        state.problem(problem.path, problem.line, problem.why)
    _same_settings(state, run)
    for site, chain in run.sites.items():
        if run.central is None:
            state.notes.append(
                f"{site}, study {run.study!r}: the aggregator's transcript is not here, so the site's own "
                "was not compared with it"
            )
        else:
            _count_sums(state, run.study, run.central, chain)


def _same_settings(state: CheckedFolder, run: AuditedRun) -> None:
    stated: tuple[VerifiedRecord, object] | None = None
    for chain in ([run.central] if run.central else []) + list(run.sites.values()):
        body = settings_of(chain.entries)
        if body is None:
            continue
        stated = stated or (chain, body)
        if body != stated[1]:
            state.problem(chain.source.path, 2, f"its settings differ from those in {stated[0].source.path}")


def _count_sums(state: CheckedFolder, study: str, central: VerifiedRecord, chain: VerifiedRecord) -> None:
    """A survivor may lack a sum: it never got the result, or the end of its transcript was cut off."""
    lost = 0
    own = _specs(chain)
    for entry in central.entries if chain.entries else ():
        if entry.kind == SUMMED and chain.owner in entry.body.get("survivors", []):
            lost += entry.body.get("spec_digest") not in own
    if lost:
        state.notes.append(
            f"{chain.owner}, study {study!r}: {lost} sums that the site is in are not in its transcript; it "
            "never got the result, or the end of its transcript is cut off"
        )
