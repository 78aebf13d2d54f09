"""The study centre: whom it admits, whom it refuses, and what a crash leaves behind."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from secfed.crypto.identity import Identity
from secfed.deploy.enrolment.consortium import Consortium
from secfed.deploy.enrolment.members import Members, _RemovedEntry
from secfed.deploy.enrolment.messages import Reply, Request
from secfed.deploy.pki import certificate_checks, key_files
from secfed.deploy.pki.key_files import new_tls_key
from secfed.errors import ConfigError, RosterError
from secfed.records.roster_file import read_roster
from secfed.storage import private_files
from tests.deploy.enrol_case import (
    DAY,
    NOW,
    a_request,
    admit,
    admitted,
    check_pair,
    consortium,
    content,
    crash_after,
    site,
)


def test_a_list_of_members_that_could_not_be_read_again_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "members.json"
    Members().save(path)
    before = path.read_bytes()
    gone = _RemovedEntry(site="ward", identity_key=64 * "0", tls_key=182 * "0", removed_s=0)
    with pytest.raises(ConfigError, match=r"members\.json: the list would be .* nothing was changed"):
        Members(removed=4000 * (gone,)).save(path)
    assert path.read_bytes() == before
    Members(removed=2000 * (gone,)).save(path)
    assert len(Members.load(path).removed) == 2000


def a_name_for(identity: Identity, name: str) -> Identity:
    return Identity.from_seed(name, identity.private_bytes())


class TestFounding:
    def test_an_empty_consortium_has_keys_and_no_roster(self, tmp_path: Path) -> None:
        centre = consortium(tmp_path)
        assert centre.roster() is None
        assert not centre.roster_path.exists()
        assert centre.aggregator_identity(None).public_bytes == centre.aggregator.identity_key
        certificate = centre.tls.certificate()
        certificate_checks.check_issued(certificate, centre.ca(), NOW)
        assert certificate_checks.is_aggregator(certificate)

    def test_private_keys_are_for_their_owner_only(self, tmp_path: Path) -> None:
        centre = consortium(tmp_path)
        keys = list(centre.folder.rglob("*.key"))
        assert sorted(path.name for path in keys) == ["ca.key", "identity.key", "tls.key"]
        folders = {path.parent for path in keys} | {centre.folder}
        assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
        assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}

    def test_it_is_not_founded_twice_in_one_folder(self, tmp_path: Path) -> None:
        centre = consortium(tmp_path)
        before = {path: path.read_bytes() for path in centre.folder.rglob("*") if path.is_file()}
        with pytest.raises(ConfigError, match="not empty"):
            consortium(tmp_path)
        assert before == {path: path.read_bytes() for path in centre.folder.rglob("*") if path.is_file()}

    @pytest.mark.parametrize(
        "bad", [{"hosts": ("a b",)}, {"hosts": ()}, {"port": 0}, {"certificate_days": 0}]
    )
    def test_bad_values_leave_nothing_behind(self, tmp_path: Path, bad: dict[str, object]) -> None:
        with pytest.raises(ConfigError):
            consortium(tmp_path, **bad)
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_was_never_finished_is_not_taken_for_one(self, tmp_path: Path) -> None:
        centre = consortium(tmp_path)
        (centre.folder / "consortium.json").unlink()
        with pytest.raises(ConfigError, match="not the folder of a consortium"):
            Consortium(centre.folder)

    def test_a_folder_that_others_can_enter_is_refused(self, tmp_path: Path) -> None:
        centre = consortium(tmp_path)
        centre.folder.chmod(0o750)
        with pytest.raises(ConfigError, match="other users"):
            Consortium(centre.folder)


class TestAdmission:
    def test_a_site_gets_a_certificate_and_a_place_in_the_roster(self, tmp_path: Path) -> None:
        centre, hospital = consortium(tmp_path), site(tmp_path, "charite")
        path = centre.admit(hospital.request(), now=NOW, passphrase=None)
        reply = Reply.verified(content(path), "reply", NOW)
        assert reply.site == "charite"
        assert certificate_checks.public_der(reply.certificate) == certificate_checks.public_der(
            hospital.request().tls_key
        )
        roster = read_roster(centre.roster_path)
        assert roster == centre.roster()
        assert roster.public("charite") == hospital.request().identity_key
        assert roster.aggregator == centre.aggregator.identity_key

    def test_replies_and_rosters_hold_no_private_key(self, tmp_path: Path) -> None:
        centre, hospital = consortium(tmp_path), site(tmp_path, "charite")
        admit(centre, hospital)
        for path in centre.folder.rglob("*"):
            if path.is_file() and path.suffix != ".key":
                assert b"PRIVATE" not in path.read_bytes()

    def test_a_name_and_a_key_are_enrolled_once(self, tmp_path: Path) -> None:
        centre, identity, tls_key = consortium(tmp_path), Identity.generate("charite"), new_tls_key()
        centre.admit(Request.verified(Request.sign(identity, tls_key, NOW), "r"), now=NOW, passphrase=None)
        before = centre.roster()
        same_key = Request.verified(Request.sign(Identity.generate("hcuge"), tls_key, NOW), "r")
        for request, why in (
            (a_request("charite"), "'charite' is enrolled already"),
            (
                a_request("hcuge", identity=a_name_for(identity, "hcuge")),
                "'hcuge' shows the identity key of 'charite'",
            ),
            (same_key, "'hcuge' shows the TLS key of 'charite'"),
        ):
            with pytest.raises(RosterError, match=why):
                centre.admit(request, now=NOW, passphrase=None)
        assert centre.roster() == before

    def test_the_aggregators_keys_are_no_sites_keys(self, tmp_path: Path) -> None:
        centre = consortium(tmp_path)
        own = a_name_for(centre.aggregator_identity(None), "charite")
        with pytest.raises(RosterError, match="aggregator's identity key"):
            centre.admit(a_request("charite", identity=own), now=NOW, passphrase=None)
        for path in (centre.ca_key_path, *centre.tls.key_paths):
            tls_key = key_files.read_tls_key(path, None)
            request = Request.sign(Identity.generate("charite"), tls_key, NOW)
            with pytest.raises(RosterError, match="TLS key of the study centre"):
                centre.admit(Request.verified(request, "r"), now=NOW, passphrase=None)

    def test_without_the_ca_key_nobody_is_admitted_and_everything_else_works(self, tmp_path: Path) -> None:
        centre = admitted(tmp_path, "charite")
        centre.ca_key_path.rename(tmp_path / "usb-stick")
        with pytest.raises(ConfigError, match=r"ca\.key: is not there"):
            centre.admit(a_request("hcuge"), now=NOW, passphrase=None)
        assert Consortium(centre.folder).roster() is not None
        centre.aggregator_tls(None, NOW)

    def test_a_ca_key_of_another_consortium_is_refused(self, tmp_path: Path) -> None:
        centre = consortium(tmp_path)
        centre.ca_key_path.unlink()
        key_files.create_key(centre.ca_key_path, new_tls_key(), None)
        with pytest.raises(ConfigError, match=r"not the key of ca\.pem"):
            centre.admit(a_request("charite"), now=NOW, passphrase=None)


class TestRemoval:
    def test_a_removed_site_is_out_of_the_roster_and_its_keys_stay_out(self, tmp_path: Path) -> None:
        centre, identity = consortium(tmp_path), Identity.generate("charite")
        tls_key = new_tls_key()
        request = Request.verified(Request.sign(identity, tls_key, NOW), "r")
        centre.admit(request, now=NOW, passphrase=None)
        centre.admit(a_request("hcuge"), now=NOW, passphrase=None)
        centre.remove("charite", now=NOW)
        assert read_roster(centre.roster_path).sites == ("hcuge",)
        assert not (centre.folder / "replies" / "charite.json").exists()
        with pytest.raises(RosterError, match="identity key of a removed site"):
            centre.admit(request, now=NOW, passphrase=None)
        reused = Request.sign(Identity.generate("charite"), tls_key, NOW)
        with pytest.raises(RosterError, match="TLS key of a removed site"):
            centre.admit(Request.verified(reused, "r"), now=NOW, passphrase=None)
        centre.admit(a_request("charite"), now=NOW, passphrase=None)
        assert read_roster(centre.roster_path).public("charite") != identity.public_bytes

    def test_the_last_site_takes_the_roster_file_with_it(self, tmp_path: Path) -> None:
        centre = admitted(tmp_path, "charite")
        centre.remove("charite", now=NOW)
        assert not centre.roster_path.exists()

    def test_an_unknown_site_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(RosterError, match="'charite' is not enrolled"):
            consortium(tmp_path).remove("charite", now=NOW)


class TestRenewal:
    def test_a_site_can_be_renewed_with_its_old_key(self, tmp_path: Path) -> None:
        centre = consortium(tmp_path)
        request = a_request("charite")
        centre.admit(request, now=NOW, passphrase=None)
        before = centre.roster()
        path = centre.renew_site("charite", None, now=NOW + 60 * DAY, passphrase=None)
        reply = Reply.verified(content(path), "reply", NOW + 60 * DAY)
        assert reply.certificate.not_valid_after_utc == NOW + 150 * DAY
        assert reply.certificate.public_key() == request.tls_key
        assert centre.roster() == before

    def test_a_renewal_needs_the_enrolled_identity_and_a_newer_request(self, tmp_path: Path) -> None:
        centre, identity = consortium(tmp_path), Identity.generate("charite")
        first = a_request("charite", identity=identity)
        centre.admit(first, now=NOW, passphrase=None)
        newer = a_request("charite", identity=identity, now=NOW + DAY)
        centre.renew_site("charite", newer, now=NOW + DAY, passphrase=None)
        for old in (first, newer):
            with pytest.raises(RosterError, match="not newer"):
                centre.renew_site("charite", old, now=NOW + 2 * DAY, passphrase=None)
        with pytest.raises(RosterError, match="another identity key"):
            centre.renew_site("charite", a_request("charite", now=NOW + 2 * DAY), now=NOW, passphrase=None)
        with pytest.raises(ConfigError, match="from 'hcuge', not 'charite'"):
            centre.renew_site("charite", a_request("hcuge"), now=NOW, passphrase=None)
        with pytest.raises(RosterError, match="'hcuge' is not enrolled"):
            centre.renew_site("hcuge", None, now=NOW, passphrase=None)

    def test_a_renewal_cannot_take_the_tls_key_of_another_site(self, tmp_path: Path) -> None:
        centre, identity, tls_key = consortium(tmp_path), Identity.generate("hcuge"), new_tls_key()
        charite = Request.sign(Identity.generate("charite"), tls_key, NOW)
        centre.admit(Request.verified(charite, "r"), now=NOW, passphrase=None)
        centre.admit(a_request("hcuge", identity=identity), now=NOW, passphrase=None)
        newer = Request.verified(Request.sign(identity, tls_key, NOW + DAY), "r")
        with pytest.raises(RosterError, match="TLS key of 'charite'"):
            centre.renew_site("hcuge", newer, now=NOW + DAY, passphrase=None)

    def test_the_aggregator_gets_a_new_key_and_the_same_hosts(self, tmp_path: Path) -> None:
        centre = consortium(tmp_path)
        before = centre.tls.certificate()
        after = centre.renew_aggregator(now=NOW + 60 * DAY, passphrase=None)
        assert after == centre.tls.certificate()
        assert after.public_key() != before.public_key()
        assert after.not_valid_after_utc == NOW + 150 * DAY
        assert centre.aggregator_tls(None, NOW).certificate == certificate_checks.to_pem(after).encode()


class TestPassphrase:
    def test_every_private_key_is_encrypted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(key_files, "_SCRYPT", {"n": 16, "r": 8, "p": 1})
        secret = "correct horse battery"
        centre = consortium(tmp_path, passphrase=secret)
        assert all(key_files.is_encrypted(path) for path in centre.folder.rglob("*.key"))
        with pytest.raises(ConfigError, match="needs a passphrase"):
            centre.admit(a_request("charite"), now=NOW, passphrase=None)
        centre.admit(a_request("charite"), now=NOW, passphrase=secret)
        centre.renew_aggregator(now=NOW, passphrase=secret)
        assert all(key_files.is_encrypted(path) for path in centre.folder.rglob("*.key"))
        assert b"BEGIN PRIVATE KEY" in centre.aggregator_tls(secret, NOW).private_key
        assert "BEGIN PRIVATE KEY" not in repr(centre.aggregator_tls(secret, NOW))


class TestCrash:
    @pytest.mark.parametrize("survives", range(4))
    def test_a_crash_at_any_rename_during_an_admission_is_repaired(
        self, tmp_path: Path, survives: int
    ) -> None:
        """After it the site is enrolled and gets its reply by `renew`, or it is not and can be admitted."""
        centre = admitted(tmp_path, "charite")
        request = a_request("hcuge")
        with crash_after(survives):
            centre.admit(request, now=NOW, passphrase=None)
        again = Consortium(centre.folder)
        again.restore_roster_file()
        assert read_roster(again.roster_path) == again.roster()
        if "hcuge" in again.members().current:
            path = again.renew_site("hcuge", None, now=NOW, passphrase=None)
        else:
            path = again.admit(request, now=NOW, passphrase=None)
        assert Reply.verified(content(path), "reply", NOW).certificate.public_key() == request.tls_key
        assert read_roster(again.roster_path).sites == ("charite", "hcuge")

    @pytest.mark.parametrize("survives", range(3))
    def test_a_crash_at_any_rename_during_the_aggregators_renewal_keeps_it_serving(
        self, tmp_path: Path, survives: int
    ) -> None:
        centre = consortium(tmp_path)
        with crash_after(survives):
            centre.renew_aggregator(now=NOW + DAY, passphrase=None)
        again = Consortium(centre.folder)
        check_pair(again.aggregator_tls(None, NOW))
        again.renew_aggregator(now=NOW + 2 * DAY, passphrase=None)
        again.aggregator_tls(None, NOW)
        assert not (again.folder / "aggregator" / "tls-next.key").exists()


def test_a_damaged_list_of_members_is_refused(tmp_path: Path) -> None:
    centre = admitted(tmp_path, "charite")
    path = centre.folder / "members.json"
    private_files.replace(path, path.read_bytes()[:-20])
    with pytest.raises(ConfigError, match=r"members\.json"):
        centre.roster()
