"""Verification of everything an audit found, in one pass, without changing a file.

1. Rosters are consistent. Those that the reader names are believed, and the earlier ones kept beside them.
2. Every chain verifies under the key that a believed roster names for its owner; for a transcript it is the
   roster that its first line names. Where that is not here, the file is unchecked, and not called wrong.
3. Transcripts of one run agree with each other (:func:`secfed.audit.transcript_check.compare_run`), also
   where each party handed in its own folder.
4. Every ledger state that a transcript recorded stands in that ledger; two copies of a ledger agree.
5. Every recorded epsilon is what the events give (:mod:`secfed.audit.privacy.recompute`).
6. Every head that was shown earlier, and that the reader names, is still in one of the chains.

A problem is a fact about a file that must not be so. A note is something a reader should know.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from secfed.audit.languages import said
from secfed.audit.party import Party
from secfed.audit.privacy.files import Source, find
from secfed.audit.privacy.findings import AGGREGATOR, AuditedRun, CheckedFolder, VerifiedRecord
from secfed.audit.privacy.site_files import check_heads, longest_copies
from secfed.audit.transcript_check import compare_run
from secfed.dp.ledger.ledger import LEDGER, SPENT
from secfed.errors import ConfigError
from secfed.records.decision_log import DECISIONS
from secfed.records.hash_chain import BadlySigned, BrokenChain, Entry, verify_chain
from secfed.records.roster_file import read_rosters
from secfed.records.transcript import TRANSCRIPT

Progress = Callable[[int, int], None]


def check(
    folders: Sequence[Path],
    pinned: Sequence[Path],
    tick: Progress | None,
    earlier_heads: Sequence[str],
    owner: str | None = None,
) -> CheckedFolder:
    """Find and verify everything under some folders; see :func:`secfed.audit.privacy.make_report`."""
    found = find(folders, owner)
    state = CheckedFolder(found, list(dict.fromkeys(one for path in pinned for one in read_rosters(path))))
    _check_transcripts(state)
    state.ledgers = longest_copies(state, LEDGER)
    check_heads(state)
    state.decisions = sorted(longest_copies(state, DECISIONS), key=lambda log: log.owner)
    _check_earlier_heads(state, earlier_heads)
    _recompute(state, tick)
    return state


def _check_earlier_heads(state: CheckedFolder, heads: Sequence[str]) -> None:
    """Look for heads that an earlier report showed: the second witness where the owner holds the key.

    A chain by itself does not show that its end was cut off, or that it was written anew. A chain that ever
    ended at a head has an entry with that hash for ever.
    """
    for head in heads:
        if not re.fullmatch(r"[0-9a-f]{64}", head.lower()):
            raise ConfigError(
                f"--seen {head[:70]}: is not a head",
                remedy="give all 64 hexadecimal digits, as the report shows them under Verification",
            )
    known = {entry.hash.hex() for chain in state.chains for entry in chain.entries}
    for head in heads:
        if head.lower() not in known:
            text = (
                "no record below it has the head {head}, which was shown earlier: a record was cut off, "
                "replaced or written anew, does not verify, or is not here"
            )
            state.problem(state.found.folders[0], None, said(text, head=head.lower()))


def _recompute(state: CheckedFolder, tick: Progress | None) -> None:
    of = sum(entry.kind == SPENT for ledger in state.ledgers for entry in ledger.entries)
    done = itertools.count(1)

    def one() -> None:
        if tick is not None:
            tick(next(done), of)

    for ledger in state.ledgers:
        state.standings[ledger.path], wrong = state.recomputer.ledger(ledger.entries, one)
        for line, why in wrong:
            state.problem(ledger.path, line, why)


def _check_transcripts(state: CheckedFolder) -> None:
    """Verify every transcript, and every run of them."""
    for source in state.found.of(TRANSCRIPT):
        run = _transcript(state, source)
        if run is not None:
            state.runs.append(run)
    _join(state)
    for run in state.runs:
        _check_run(state, run)


def _transcript(state: CheckedFolder, source: Source) -> AuditedRun | None:
    """A run of one transcript; the first line's claims choose the key and are then verified."""
    rosters = state.rosters_for(source)
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
    state.used[roster] = None
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
            state.problem(path, 2, said("its settings differ from those in {file}", file=stated[0][0]))
    absent = [site for site in run.roster.sites if site not in run.sites]
    if run.central is not None and absent:
        text = (
            "study {study!r}: no transcript is here of {sites}, which the roster names; so theirs was not "
            "compared with the others"
        )
        state.notes.append(said(text, study=run.study, sites=", ".join(absent)))
    for site, chain in run.sites.items():
        if run.central is None:
            text = (
                "{site}, study {study!r}: the aggregator's transcript is not here, so the site's own was not "
                "compared with it"
            )
            state.notes.append(said(text, site=site, study=run.study))
            continue
        own = _specs(chain)
        named = [(entry.body.get("survivors"), entry.body.get("spec_digest")) for entry in run.central.summed]
        lost = sum(isinstance(who, list) and site in who and digest not in own for who, digest in named)
        if lost and chain.entries:
            text = (
                "{site}, study {study!r}: {lost} sums that the site is in are not in its transcript; it "
                "never got the result, or the end of its transcript is cut off"
            )
            state.notes.append(said(text, site=site, study=run.study, lost=lost))
