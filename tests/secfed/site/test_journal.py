"""The journal: ascending attempts, one unmasking per exchange, whoever asks, whatever happens to the file."""

from __future__ import annotations

import gc
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secfed.attack.harvest import Harvest
from secfed.crypto.attempt import AttemptId, SiteLimits
from secfed.crypto.refusals import Refusal
from secfed.errors import ConfigError, DiskFull, RoundAborted, SecfedError
from secfed.site.journal import Journal
from tests.ring import add_in_ring
from tests.simulator import Consortium


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    made = Journal(path)
    yield made
    made.close()


def outcome(journal: Journal, call: str, study: str, attempt: AttemptId) -> int:
    """The number of the refusal that a call raises, 0 if it goes through, -1 for any other error of ours."""
    try:
        getattr(journal, call)(study, attempt)
    except SecfedError as error:
        return next((r.number for r in Refusal if error.message.startswith(f"refusal {r.number}: ")), -1)
    return 0


def serve(journal: Journal, attempt: AttemptId) -> None:
    """A whole attempt."""
    journal.begin("study", attempt)
    journal.uploaded("study", attempt)
    journal.unmasked("study", attempt)


FIRST, SECOND = AttemptId(1, 0, 0), AttemptId(1, 0, 1)


@pytest.mark.parametrize(
    ("later", "number"),
    [
        (AttemptId(3, 1, 2), Refusal.OLD_ATTEMPT.number),
        (AttemptId(3, 1, 1), Refusal.OLD_ATTEMPT.number),
        (AttemptId(3, 0, 9), Refusal.OLD_ATTEMPT.number),
        (AttemptId(2, 9, 9), Refusal.OLD_ATTEMPT.number),
        (AttemptId(3, 1, 3), 0),
        (AttemptId(3, 2, 0), 0),
        (AttemptId(4, 0, 0), 0),
    ],
)
def test_attempts_ascend_by_round_then_exchange_then_attempt(
    journal: Journal, later: AttemptId, number: int
) -> None:
    journal.begin("study", AttemptId(3, 1, 2))
    assert outcome(journal, "begin", "study", later) == number


def test_studies_do_not_disturb_each_other(journal: Journal) -> None:
    serve(journal, AttemptId(9, 0, 0))
    assert outcome(journal, "begin", "another", FIRST) == 0
    assert outcome(journal, "begin", "study", FIRST) == Refusal.OLD_ATTEMPT.number


def test_an_update_that_left_begins_no_further_attempt(journal: Journal) -> None:
    journal.begin("study", FIRST)
    journal.uploaded("study", FIRST)
    assert outcome(journal, "begin", "study", SECOND) == Refusal.ALREADY_SPENT.number
    assert outcome(journal, "uploaded", "study", FIRST) == Refusal.ALREADY_SPENT.number
    assert outcome(journal, "begin", "study", AttemptId(1, 1, 0)) == 0


def test_only_the_newest_attempt_uploads_and_unmasks(journal: Journal) -> None:
    journal.begin("study", FIRST)
    journal.begin("study", SECOND)
    assert outcome(journal, "uploaded", "study", FIRST) == Refusal.OLD_ATTEMPT.number
    assert outcome(journal, "unmasked", "study", FIRST) == Refusal.OLD_ATTEMPT.number
    journal.uploaded("study", SECOND)
    journal.unmasked("study", SECOND)
    assert outcome(journal, "unmasked", "study", SECOND) == Refusal.SECOND_UNMASK.number


def test_shares_leave_only_after_an_upload_that_is_known(journal: Journal) -> None:
    assert outcome(journal, "unmasked", "study", FIRST) == Refusal.JOURNAL_ROLLED_BACK.number
    assert outcome(journal, "uploaded", "study", FIRST) == Refusal.JOURNAL_ROLLED_BACK.number
    journal.begin("study", FIRST)
    assert outcome(journal, "unmasked", "study", FIRST) == Refusal.JOURNAL_ROLLED_BACK.number
    assert outcome(journal, "uploaded", "another", FIRST) == Refusal.JOURNAL_ROLLED_BACK.number


_CALLS = st.tuples(
    st.sampled_from(["begin", "uploaded", "unmasked"]),
    st.sampled_from(["study", "another"]),
    st.builds(AttemptId, st.integers(0, 2), st.integers(0, 1), st.integers(0, 2)),
)


@given(calls=st.lists(_CALLS, max_size=30), reopen=st.booleans())
def test_any_history_gives_what_the_three_rules_say(
    calls: list[tuple[str, str, AttemptId]], reopen: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.sqlite" if reopen else None
    journal = Journal(path)
    left: set[tuple[str, int, int]] = set()
    newest: dict[str, tuple[AttemptId, int]] = {}  # study -> newest attempt, and how far it came
    for call, study, attempt in calls:
        last, reached = newest.get(study, (AttemptId(-1, -1, -1), 0))
        same_exchange = (last.round, last.exchange_index) == (attempt.round, attempt.exchange_index)
        if call == "begin":
            expected = (
                12 if (study, attempt.round, attempt.exchange_index) in left else 11 if attempt <= last else 0
            )
            step = 0
        else:
            expected = 37 if attempt > last else 11 if attempt < last else 0
            step = 1 if call == "uploaded" else 2
            if not expected and step == 1 and reached >= 1:
                expected = 12
            if not expected and step == 2 and reached != 1:
                expected = 34 if reached == 2 else 37
        if not expected:
            newest[study] = (attempt, step)
            if step == 1:
                assert same_exchange
                left.add((study, attempt.round, attempt.exchange_index))
        assert outcome(journal, call, study, attempt) == expected
        if reopen:
            journal.close()
            journal = Journal(path)
    journal.close()


# On the disk.


def test_every_call_is_synchronised_before_it_returns(journal: Journal) -> None:
    """EXTRA: the database, its rollback journal and their folder are synchronised at every commit."""
    assert journal._db.execute("PRAGMA synchronous").fetchone() == (3,)
    assert journal._db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert not journal._db.in_transaction
    journal.begin("study", FIRST)
    assert not journal._db.in_transaction
    outcome(journal, "begin", "study", FIRST)
    assert not journal._db.in_transaction


def test_another_process_sees_a_fact_as_soon_as_the_call_returns(journal: Journal, path: Path) -> None:
    columns = "SELECT round, exchange, attempt, uploaded, unmasked FROM attempts"
    other = sqlite3.connect(path)
    for call, row in (
        ("begin", (1, 0, 0, 0, 0)),
        ("uploaded", (1, 0, 0, 1, 0)),
        ("unmasked", (1, 0, 0, 1, 1)),
    ):
        getattr(journal, call)("study", FIRST)
        assert other.execute(columns).fetchall() == [row]
    other.close()


def test_two_agents_on_one_journal_serve_an_attempt_once(path: Path) -> None:
    """Threads with a connection each: exactly one begins, exactly one uploads, exactly one unmasks."""
    results: dict[str, list[int]] = {"begin": [], "uploaded": [], "unmasked": []}
    ready = threading.Barrier(4)

    def agent() -> None:
        mine = Journal(path)
        for call in results:
            ready.wait(timeout=60)
            results[call].append(outcome(mine, call, "study", FIRST))
        mine.close()

    Journal(path).close()
    threads = [threading.Thread(target=agent) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results["begin"]) == [0, 11, 11, 11]
    assert sorted(results["uploaded"]) == [0, 12, 12, 12]
    assert sorted(results["unmasked"]) == [0, 34, 34, 34]


def test_a_full_disk_keeps_everything_in(journal: Journal) -> None:
    """The journal cannot grow any more: no attempt begins, and what was noted stays readable."""
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count = {pages}")
    journal.begin("study", FIRST)

    def begin_for_ever() -> None:
        for attempt in range(1, 10_000):
            journal.begin("study", AttemptId(1, 0, attempt))

    with pytest.raises(DiskFull, match=r"journal.sqlite cannot be used: .*full") as caught:
        begin_for_ever()
    assert "free space" in caught.value.remedy
    assert not journal._db.in_transaction
    newest = journal._db.execute("SELECT max(attempt) FROM attempts").fetchone()[0]
    assert outcome(journal, "uploaded", "study", AttemptId(1, 0, newest)) == 0


def test_a_journal_that_another_process_holds_is_not_passed_over(journal: Journal, path: Path) -> None:
    journal.begin("study", FIRST)
    journal._db.execute("PRAGMA busy_timeout = 1")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(ConfigError, match="locked"):
        journal.uploaded("study", FIRST)
    other.execute("ROLLBACK")
    other.close()
    assert outcome(journal, "uploaded", "study", FIRST) == 0


@pytest.mark.parametrize("what", ["a folder", "text", "another database"])
def test_a_file_that_is_no_journal_is_named(path: Path, what: str) -> None:
    if what == "a folder":
        path.mkdir()
    elif what == "text":
        path.write_text("this is not a database, " * 100)
    else:
        other = sqlite3.connect(path)
        other.execute("CREATE TABLE attempts (something INTEGER)")
        other.commit()
        other.close()
    with pytest.raises(ConfigError, match=r"journal.sqlite cannot be used"):
        Journal(path).begin("study", FIRST)


@pytest.mark.parametrize("usable", [True, False])
def test_the_database_is_closed_with_the_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch, usable: bool
) -> None:
    """From Python 3.13 on, a connection that nobody closes is a warning, and a warning here an error."""
    opened, connect = list[sqlite3.Connection](), sqlite3.connect

    def kept(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", kept)
    if usable:
        Journal(path)
    else:
        path.write_text("this is not a database, " * 100)
        with pytest.raises(ConfigError):
            Journal(path)
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")


# Rollback: SECURITY.md, "Journal rollback".


@pytest.mark.parametrize("how", ["copied over", "renamed in", "removed"])
@pytest.mark.parametrize("call", ["begin", "uploaded", "unmasked"])
def test_a_rollback_while_the_site_runs_is_noticed(journal: Journal, path: Path, how: str, call: str) -> None:
    backup = path.with_suffix(".backup")
    shutil.copyfile(path, backup)
    journal.begin("study", FIRST)
    if how == "copied over":
        shutil.copyfile(backup, path)
    elif how == "renamed in":
        backup.rename(path)
    else:
        path.unlink()
    number = outcome(journal, call, "study", SECOND if call == "begin" else FIRST)
    assert number == Refusal.JOURNAL_ROLLED_BACK.number


def test_a_rollback_while_the_site_is_stopped_is_not_noticed_by_the_site(path: Path) -> None:
    """Documents a limit: an older journal is a valid journal. The site begins and would unmask again."""
    first = Journal(path)
    backup = path.with_suffix(".backup")
    shutil.copyfile(path, backup)
    serve(first, FIRST)
    first.close()
    shutil.copyfile(backup, path)
    again = Journal(path)
    serve(again, FIRST)
    again.close()


def test_one_rolled_back_journal_gains_the_server_nothing() -> None:
    """The other sites remember: too few are left for a second sum with another survivor set."""
    consortium = Consortium()
    consortium.attempt().run()
    consortium.forget(["hospital-0"])
    second = consortium.attempt(consortium.specification(attempt=1, cohort=consortium.names[:4]))
    with pytest.raises(RoundAborted, match="only 1 of 4"):
        second.run()
    assert all("refusal 12" in str(error) for error in second.refusals.values())
    assert len(second.refusals) == 3
    assert not Harvest.of(second).self_mask


def test_as_many_rolled_back_journals_as_the_threshold_give_a_second_sum() -> None:
    """Documents the limit: who restores the journals of t sites undoes "one attempt, one use" for them."""
    consortium = Consortium(limits=SiteLimits(colluders=1))
    first = consortium.attempt().run()
    rest = consortium.names[1:]
    consortium.forget(rest)
    spec = consortium.specification(attempt=1, cohort=rest, threshold=3)
    second = consortium.attempt(spec).run()
    assert second.server.survivors == rest
    difference = tuple(a - b for a, b in zip(first.server.sums, second.server.sums, strict=True))
    victim = (consortium.updates["hospital-0"],)
    assert add_in_ring([difference], consortium.shape) == add_in_ring(victim, consortium.shape)


def test_sites_that_share_a_journal_may_protect_side_by_side() -> None:
    journal, attempts = Journal(), [AttemptId(number, 0, 0) for number in range(1, 31)]
    with closing(journal), ThreadPoolExecutor(8) as threads:
        found = threads.map(
            lambda site: [outcome(journal, "begin", f"{site}/study", attempt) for attempt in attempts],
            range(8),
        )
        assert {one for outcomes in found for one in outcomes} == {0}
