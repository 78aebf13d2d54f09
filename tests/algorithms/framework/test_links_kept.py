"""What a hospital took of a round outlives a kill with the work that it stands for, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from secfed.crypto.refusals import Refusal
from secfed.site import durable_store, local_work
from secfed.site.attempt_work import decode_taken, encode_taken
from secfed.site.build import build_site
from secfed.site.durable_store import DurableStore
from secfed.site.parts import Member, Services
from secfed.site.session import Site
from secfed.site.terms import Terms
from secfed.storage.signed_files import SignedFiles
from secfed.study.limits import limits_of, study_id
from tests.algorithms import fmcsc_case
from tests.algorithms.framework.test_links import naming
from tests.algorithms.isolation_case import Hospitals, Unread

ME, EARLIER, LATER = "hospital-2", "train-full", "train-view-1"


class Killed(BaseException):  # no error: nothing that handles errors sees it
    """The process is gone."""


class OnDisk:
    """One of the hospitals keeps its memory in a folder and can be killed."""

    def __init__(self, folder: Path) -> None:
        self.study = fmcsc_case.study(
            protection__name="masked", algorithm__pretrain_rounds=0, study__rounds=1
        )
        self.folder, self.hospitals = folder, Hospitals(self.study)
        self.names = [one.name for one in self.hospitals.algorithm.exchanges(1)]
        old = self.hospitals.sites[ME]
        assert isinstance(old, Site)
        self._member = Member(old._identity, old._roster)
        self.start()

    def start(self, opened_with: bytes = b"") -> None:
        study, algorithm, name = self.study, self.hospitals.algorithm, study_id(self.study)
        journal = self.hospitals.journals[list(self.hospitals.sites).index(ME)]
        files = SignedFiles(self.folder, self._member.identity, name)
        store = DurableStore(files, journal, name, opened_with=opened_with)
        program = algorithm.site(ME)
        if kept := store.program():
            program.load(kept)
        site = build_site(
            Terms(study, algorithm, tuple(algorithm.setting.sites)),
            self._member,
            program,
            limits=limits_of(study, len(algorithm.setting.sites)),
            draws=store.draws,
            store=store,
            services=Services(Unread()),
        )
        site.resume()
        self.hospitals.sites[ME] = site

    def asked(self, name: str, state: bytes) -> list[str]:
        return self.hospitals.task(1, self.names.index(name), [ME], state)


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[OnDisk]:
    made = OnDisk(tmp_path)
    yield made
    made.hospitals.close()


@pytest.mark.parametrize("where", ["site: before contribution noted", "site: before task taken"])
@pytest.mark.parametrize("again", [False, True])
def test_a_task_counts_as_taken_only_with_its_work(
    on_disk: OnDisk, monkeypatch: pytest.MonkeyPatch, where: str, again: bool
) -> None:
    def dies(at: str) -> None:
        if at == where:
            raise Killed

    earlier = on_disk.hospitals.broadcast(1, on_disk.names.index(EARLIER))
    with monkeypatch.context() as patched:
        patched.setattr(durable_store, "failpoint", dies)
        patched.setattr(local_work, "failpoint", dies)
        with pytest.raises(Killed):
            on_disk.asked(EARLIER, earlier)
    on_disk.start()
    if again:
        assert on_disk.asked(EARLIER, earlier) == [ME]
    places = [on_disk.names.index(name) for name in (LATER, EARLIER)]
    ready = on_disk.asked(LATER, naming(on_disk.hospitals, 1, places[0], earlier, places[1]))
    assert ready == ([ME] if again else [])
    if not again:
        assert all(f"refusal {Refusal.BUILDS_ON.number}" in why for *_, why in on_disk.hospitals.refusals)
    else:
        pending = on_disk.hospitals.sites[ME]._local.pending
        assert pending is not None
        assert float(pending.summands["update/enc.0.0.weight"].abs().max()) > 0  # type: ignore[union-attr]


def test_what_was_taken_over_another_data_set_counts_for_nothing(on_disk: OnDisk) -> None:
    earlier = on_disk.hospitals.broadcast(1, on_disk.names.index(EARLIER))
    assert on_disk.asked(EARLIER, earlier) == [ME]
    places = [on_disk.names.index(name) for name in (LATER, EARLIER)]
    later = naming(on_disk.hospitals, 1, places[0], earlier, places[1])
    on_disk.start(opened_with=b"another")
    assert on_disk.asked(LATER, later) == []
    on_disk.start()
    written = encode_taken(3, {"moments": bytes(32)}, b"one")
    assert decode_taken(written, b"one") == (3, {"moments": bytes(32)})
    assert decode_taken(written, b"other") == (0, {})
