"""Whether a hospital still knows what it answered, paid and decided, and what follows if it does not.

SITE/state-id.json, STATE/state-id.json   equal as long as the state folder is the one that was used last
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Final

from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.near_twins import begun_studies
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.runs.run_folder import STUDIES_FOLDER
from secfed.site.journal import Journal
from secfed.site.lost_memory import note_loss
from secfed.storage import private_files

log = logging.getLogger("secfed.agent")

JOURNAL: Final = "journal.sqlite"
ID_FILE: Final = "state-id.json"


def notice_loss(site: SiteFolder, now: datetime) -> bool:
    """Before the agent works: whether its state folder is not the one used last, or lacks the journal.

    So a folder that was deleted, or a disk that is not there, renews no budget and answers nothing twice.
    """
    lost = is_other(site.folder, site.state)
    if lost:
        lose(Approvals(site.approvals_path), site.state, (), now)
        log.warning("the state folder is not the one used before: a person decides about every study")
    belong_together(site.folder, site.state, anew=lost)
    return lost


def is_other(folder: Path, state: Path) -> bool:
    """Whether a site worked before, and not with this state folder, or with a journal that is gone."""
    mine, there = folder / ID_FILE, state / ID_FILE
    if not mine.exists():
        return _has_worked(state)  # nothing shows that this folder is the newest
    same = there.exists() and there.read_bytes() == mine.read_bytes()
    return not (same and (state / JOURNAL).exists())


def _has_worked(state: Path) -> bool:
    """Whether this state folder is more than what a first start that was cut off leaves."""
    if any(state.glob("ledger-*.jsonl")) or any(state.glob(f"{STUDIES_FOLDER}/*")):
        return True
    if not (state / JOURNAL).exists():
        return False
    with closing(Journal(state / JOURNAL)) as journal:
        return not journal.is_empty()


def lose(approvals: Approvals, state: Path, studies: Iterable[str], now: datetime) -> None:
    """Memory is lost: approvals are asked for again, and ``studies``, by their ids, are refused.

    Without the journal, so is every study that was begun here.
    """
    begun = set() if (state / JOURNAL).exists() else begun_studies(state)
    approvals.ask_again(now)
    for study in sorted(begun.union(studies)):
        approvals.refuse_what(study[-64:], now)
    note_loss(state, now)


def belong_together(folder: Path, state: Path, *, anew: bool) -> None:
    """From now on this is the state folder of this site, and it has a journal.

    ``anew`` after a loss: were the old folder found again, it would not know what was done since. The site's
    own mark comes last: where this is cut off, a first time is begun again and is no loss; a loss stays one.
    """
    mine, there = folder / ID_FILE, state / ID_FILE
    marked = mine.exists() and not anew
    if not there.exists() or anew:
        fresh = private_files.to_json({"id": secrets.token_hex(16)})
        private_files.replace(there, mine.read_bytes() if marked else fresh)
    if not (state / JOURNAL).exists():
        Journal(state / JOURNAL).close()
    if not marked:
        private_files.replace(mine, there.read_bytes())
