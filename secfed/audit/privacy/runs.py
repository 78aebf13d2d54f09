"""Transcripts of an audit: verified, put together run by run, and compared with each other."""

from __future__ import annotations

from pathlib import Path

from secfed.audit.party import Party
from secfed.audit.privacy.files import Source
from secfed.audit.privacy.findings import AGGREGATOR, AuditedRun, Believed, CheckedFolder, VerifiedRecord
from secfed.audit.transcript_check import compare_run
from secfed.records.hash_chain import BadlySigned, BrokenChain, Entry, verify_chain
from secfed.records.transcript import TRANSCRIPT


def check_transcripts(state: CheckedFolder, believed: Believed) -> None:
    """Verify every transcript, and every run of them."""
    for source in state.found.of(TRANSCRIPT):
        run = _transcript(state, believed, source)
        if run is not None:
            state.runs.append(run)
    _join(state)
    for run in state.runs:
        _check_run(state, run)


def _transcript(state: CheckedFolder, believed: Believed, source: Source) -> AuditedRun | None:
    """A run of one transcript; the first line's claims choose the key and are then verified."""
    rosters = believed.rosters_for(source)
    stated = str(source.claims.get("roster_digest", ""))
    if not rosters:
        state.unknown_roster(source.path, stated)
        state.record(source, "")
        return None
    roster = rosters[0]
    is_here = stated == roster.digest.hex()
    claimed = str(source.claims.get("owner", ""))
    owner = source.named_site or (claimed if claimed in roster.sites else AGGREGATOR)
    is_central = owner == AGGREGATOR
    if not is_central and owner not in roster.sites:
        if is_here:
            state.problem(source.path, None, "the roster has no such site")
        else:
            state.unknown_roster(source.path, stated)
        state.record(source, owner)
        return None
    public = roster.aggregator if is_central else roster.public(owner)
    entries: tuple[Entry, ...] = ()
    broken: BrokenChain | None = None
    try:
        entries = verify_chain(source.lines, public, TRANSCRIPT, owner=None if is_central else owner)
    except BrokenChain as error:
        broken = error
    if not is_here and (broken is None or (isinstance(broken, BadlySigned) and broken.line == 1)):
        # A whole first line that names another roster: what is missing is that roster, with its keys.
        state.unknown_roster(source.path, stated)
        state.record(source, owner)
        return None
    if broken is not None:
        state.problem(source.path, broken.line, broken.why)
    believed.use(roster)
    chain = state.record(source, owner, public, entries)
    study = chain.study if entries else str(source.claims.get("study", ""))
    return AuditedRun(study, roster, chain) if is_central else AuditedRun(study, roster, None, {owner: chain})


def _join(state: CheckedFolder) -> None:
    """One run per set of transcripts that belong together.

    First those of one folder; then hospitals' own folders join the run whose aggregator recorded one of
    their sums, or else the first run of that study and roster that lacks them.
    """
    by_folder: dict[Path, AuditedRun] = {}
    for run in state.runs:
        known = by_folder.setdefault(run.parties[0].source.run_folder, run)
        known.central = known.central or run.central
        known.sites.update(run.sites)
        if run.central is not None:
            known.study = run.study
    whole = [run for run in by_folder.values() if run.central is not None]
    for run in (run for run in by_folder.values() if run.central is None):
        site, chain = next(iter(run.sites.items()))
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
    return {entry.body.get("spec_digest") for entry in (chain.summed if chain else ())}


def _check_run(state: CheckedFolder, run: AuditedRun) -> None:
    """Compare the transcripts of a run, and the models beside them."""
    central = run.central or Party(AGGREGATOR, Path(), ())
    run.models = compare_run(central, list(run.sites.values()), run.roster, state)
    stated = [(chain.path, body) for chain in run.parties if (body := chain.settings) is not None]
    for path, body in stated[1:]:
        if body != stated[0][1]:
            state.problem(path, 2, f"its settings differ from those in {stated[0][0]}")
    for site, chain in run.sites.items():
        where = f"{site}, study {run.study!r}"
        if run.central is None:
            state.notes.append(
                f"{where}: the aggregator's transcript is not here, so the site's own was not compared "
                "with it"
            )
            continue
        own = _specs(chain)
        lost = sum(
            site in entry.body.get("survivors", []) and entry.body.get("spec_digest") not in own
            for entry in run.central.summed
        )
        if lost and chain.entries:
            state.notes.append(
                f"{where}: {lost} sums that the site is in are not in its transcript; it never got the "
                "result, or the end of its transcript is cut off"
            )
