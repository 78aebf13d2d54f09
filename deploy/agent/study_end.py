"""What the end of a study asks of a hospital that cannot open the study any more."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from secfed.crypto.identity import Identity
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.policy.absence import Absence
from secfed.errors import SecfedError
from secfed.site.durable_store import DurableStore
from secfed.site.journal import Journal
from secfed.storage.signed_files import SignedFiles


def refused_for_good(site: SiteFolder, study: str, error: SecfedError) -> bool:
    """Whether a study, by its id, was refused, and neither waits for somebody nor for something to end."""
    if Absence.of(type(error).__name__, error.message) not in (Absence.REFUSED, Absence.HELD):
        return False
    known = Approvals(site.approvals_path).all()
    return study[-64:] not in {item.digest for item in known if item.state is ApprovalState.HELD}


def forget(site: SiteFolder, identity: Identity, study: str, work: Path) -> None:
    """Destroy what a study keeps for its running exchange; transcript, ledger and journal stay."""
    with closing(Journal(site.state / "journal.sqlite")) as journal:
        DurableStore(SignedFiles(work, identity, study), journal, study).forget()
