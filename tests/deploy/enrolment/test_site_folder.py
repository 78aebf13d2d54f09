"""A hospital's folder: joining, pinning, renewing, and what its status says and when."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from secfed.crypto.identity import Identity, Roster
from secfed.deploy.enrolment import rosters
from secfed.deploy.enrolment.consortium import Consortium
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.enrolment.site_settings import load_settings
from secfed.deploy.enrolment.site_status import Level, site_status
from secfed.deploy.pki import key_files
from secfed.errors import BadSignature, ConfigError, RosterError
from secfed.records.roster_file import read_roster
from secfed.site.lost_memory import confirm_data_set, let_policy_decide, note_loss
from tests.deploy.enrol_case import (
    DAY,
    NOW,
    a_request,
    admit,
    check_pair,
    consortium,
    content,
    crash_after,
    enrolled,
    join,
    site,
    write,
)


class TestFolder:
    def test_a_new_folder_is_private_and_complete(self, tmp_path: Path) -> None:
        hospital = site(tmp_path, "charite")
        assert stat.S_IMODE(hospital.folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in hospital.key_paths} == {0o600}
        assert [path.name for path in hospital.key_paths] == ["identity.key", "tls.key"]
        assert hospital.name == "charite"
        assert hospital.identity(None).public_bytes == hospital.request().identity_key
        assert hospital.state == hospital.folder / "state"

    def test_it_is_not_made_twice(self, tmp_path: Path) -> None:
        hospital = site(tmp_path, "charite")
        before = hospital.request_path.read_bytes()
        with pytest.raises(ConfigError, match="not empty"):
            site(tmp_path, "charite")
        assert hospital.request_path.read_bytes() == before

    def test_a_folder_that_was_never_finished_is_not_taken_for_one(self, tmp_path: Path) -> None:
        hospital = site(tmp_path, "charite")
        hospital.request_path.unlink()
        with pytest.raises(ConfigError, match="not the folder of a site"):
            SiteFolder(hospital.folder)

    def test_the_name_cannot_be_changed_in_the_settings(self, tmp_path: Path) -> None:
        hospital = site(tmp_path, "charite")
        path = hospital.folder / "site.toml"
        path.write_text(path.read_text().replace('"charite"', '"hcuge"'))
        with pytest.raises(ConfigError, match=r"site\.name: 'hcuge' is not the name that was enrolled"):
            SiteFolder(hospital.folder).request()

    def test_another_identity_key_in_its_place_is_noticed(self, tmp_path: Path) -> None:
        hospital, other = site(tmp_path, "charite"), site(tmp_path, "hcuge")
        os.replace(other.folder / "identity.key", hospital.folder / "identity.key")
        with pytest.raises(ConfigError, match="not the key that was enrolled"):
            hospital.identity(None)

    @pytest.mark.parametrize(
        ("text", "key"),
        [
            ("", "site: this section is missing"),
            ('[site]\nname = "Charite"', "site.name"),
            ('[site]\nname = "aggregator"', "taken by the aggregator"),
            ('[site]\nname = "a"\n[agent]\nport = 1', "agent.port: unknown key"),
            ('[site]\nname = "a"\n[agnt]', "agnt: unknown section"),
            ('[site]\nname = "a"\n[aggregator]\naddress = "https://x:1"', "aggregator.address"),
            ('[site]\nname = "a"\n[aggregator]\nproxy = "http://user:secret@x:1"', "aggregator.proxy"),
            ('[site]\nname = "a"\n[aggregator]\nproxy = "https://x:1"', "aggregator.proxy"),
            ("site = 3", "is a value, not a section"),
            ("[site", "not valid TOML"),
        ],
    )
    def test_wrong_settings_are_refused_by_key(self, tmp_path: Path, text: str, key: str) -> None:
        (tmp_path / "site.toml").write_text(text)
        with pytest.raises(ConfigError, match=key.replace(".", r"\.")) as caught:
            load_settings(tmp_path / "site.toml")
        assert caught.value.message.startswith(f"{tmp_path / 'site.toml'}: ")
        assert caught.value.message.count("site.toml") == 1


class TestJoining:
    def test_everything_the_agent_needs_is_there(self, tmp_path: Path) -> None:
        centre, sites = enrolled(tmp_path)
        for hospital in sites.values():
            assert hospital.roster() == centre.roster()
            material = hospital.tls_material(None)
            assert material.authority == centre.ca_path.read_bytes()
            assert b"PRIVATE" not in repr(material).encode()
            assert hospital.consortium() == ("Heart study", centre.ca(), centre.aggregator)

    def test_before_joining_there_is_nothing_to_connect_with(self, tmp_path: Path) -> None:
        hospital = site(tmp_path, "charite")
        assert hospital.consortium() is None
        with pytest.raises(ConfigError, match="no certificate yet"):
            hospital.tls_material(None)
        with pytest.raises(ConfigError, match="no roster is pinned"):
            hospital.roster()

    def test_a_certificate_for_another_key_is_refused_and_changes_nothing(self, tmp_path: Path) -> None:
        """Somebody else was admitted under this site's name."""
        centre, hospital = consortium(tmp_path), site(tmp_path, "charite")
        path = centre.admit(a_request("charite"), now=NOW, passphrase=None)
        before = sorted(os.listdir(hospital.folder))
        reply = hospital.check_reply(content(path), "reply", NOW)
        with pytest.raises(ConfigError, match="does not belong to a TLS key"):
            hospital.join(reply, passphrase=None)
        assert sorted(os.listdir(hospital.folder)) == before

    def test_a_reply_that_does_not_fit_what_is_known_is_refused(self, tmp_path: Path) -> None:
        centre, sites = enrolled(tmp_path)
        hospital, replies = sites["charite"], centre.folder / "replies"
        with pytest.raises(ConfigError, match="is for site 'hcuge', not 'charite'"):
            hospital.check_reply(content(replies / "hcuge.json"), "reply", NOW)
        (tmp_path / "x").mkdir()
        path = consortium(tmp_path / "x").admit(hospital.request(), now=NOW, passphrase=None)
        with pytest.raises(ConfigError, match="from another consortium"):
            hospital.check_reply(content(path), "reply", NOW)
        old = content(replies / "charite.json")
        centre.renew_site("charite", None, now=NOW + DAY, passphrase=None)
        join(centre, hospital, now=NOW + DAY)
        with pytest.raises(ConfigError, match="older than the certificate in use"):
            hospital.check_reply(old, "reply", NOW + DAY)
        # Made by somebody who has the CA's key but not the aggregator's.
        facts = content(centre.folder / "consortium.json")
        facts["aggregator_key"] = Identity.generate("rogue").public_bytes.hex()
        write(centre.folder / "consortium.json", facts)
        path = Consortium(centre.folder).renew_site("charite", None, now=NOW + 2 * DAY, passphrase=None)
        with pytest.raises(RosterError, match="names another aggregator"):
            hospital.check_reply(content(path), "reply", NOW + 2 * DAY)

    def test_a_passphrase_is_needed_to_join(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(key_files, "_SCRYPT", {"n": 16, "r": 8, "p": 1})
        secret = "correct horse battery"
        centre, hospital = consortium(tmp_path), site(tmp_path, "charite", passphrase=secret)
        admit(centre, hospital)
        with pytest.raises(ConfigError, match="needs a passphrase"):
            join(centre, hospital)
        join(centre, hospital, passphrase=secret)
        hospital.renew(now=NOW + DAY, passphrase=secret)
        assert all(key_files.is_encrypted(path) for path in hospital.key_paths)


class TestRenewal:
    def test_identity_stays_and_the_tls_key_changes(self, tmp_path: Path) -> None:
        centre, sites = enrolled(tmp_path)
        hospital = sites["charite"]
        before, used = hospital.request(), hospital.tls_material(None)
        hospital.renew(now=NOW + 70 * DAY, passphrase=None)
        after = hospital.request()
        assert after.identity_key == before.identity_key
        assert after.tls_key != before.tls_key
        assert hospital.tls_material(None) == used, "the old certificate works until the reply is in"
        centre.renew_site("charite", after, now=NOW + 70 * DAY, passphrase=None)
        join(centre, hospital, now=NOW + 70 * DAY)
        certificate = hospital.tls.certificate()
        assert certificate.public_key() == after.tls_key
        assert [path.name for path in hospital.key_paths] == ["identity.key", "tls.key"]
        assert hospital.roster() == centre.roster()

    def test_asking_twice_keeps_the_key_that_was_asked_for(self, tmp_path: Path) -> None:
        """The study centre may be answering the first request already."""
        centre, sites = enrolled(tmp_path)
        hospital = sites["charite"]
        hospital.renew(now=NOW + DAY, passphrase=None)
        first = hospital.request()
        hospital.renew(now=NOW + 2 * DAY, passphrase=None)
        assert hospital.request().tls_key == first.tls_key
        centre.renew_site("charite", first, now=NOW + 2 * DAY, passphrase=None)
        join(centre, hospital, now=NOW + 2 * DAY)

    def test_a_clock_that_was_set_back_still_gives_a_newer_request(self, tmp_path: Path) -> None:
        centre, sites = enrolled(tmp_path)
        sites["charite"].renew(now=NOW - 100 * DAY, passphrase=None)
        request = sites["charite"].request()
        assert request.made_s == int(NOW.timestamp()) + 1
        centre.renew_site("charite", request, now=NOW, passphrase=None)

    @pytest.mark.parametrize("survives", range(5))
    def test_a_crash_at_any_rename_while_installing_leaves_a_working_pair(
        self, tmp_path: Path, survives: int
    ) -> None:
        centre, sites = enrolled(tmp_path, ("charite",))
        hospital = sites["charite"]
        hospital.renew(now=NOW + DAY, passphrase=None)
        centre.renew_site("charite", hospital.request(), now=NOW + DAY, passphrase=None)
        with crash_after(survives):
            join(centre, hospital, now=NOW + DAY)
        again = SiteFolder(hospital.folder)
        check_pair(again.tls_material(None))
        join(centre, again, now=NOW + DAY)
        assert [path.name for path in again.key_paths] == ["identity.key", "tls.key"]


class TestTrust:
    def roster(self, centre: Consortium) -> Roster:
        return read_roster(centre.roster_path)

    def test_a_changed_roster_is_not_used_until_it_is_pinned(self, tmp_path: Path) -> None:
        centre, sites = enrolled(tmp_path)
        before = sites["charite"].roster()
        centre.admit(a_request("newcomer"), now=NOW, passphrase=None)
        assert sites["charite"].roster() == before
        sites["charite"].trust(self.roster(centre), NOW + DAY)
        assert "newcomer" in sites["charite"].roster().sites
        pinned = sites["charite"].pinned()
        assert pinned.since == NOW + DAY

    @pytest.mark.parametrize("part", ["sites", "aggregator", "digest"])
    def test_a_pinned_roster_that_was_edited_is_refused(self, tmp_path: Path, part: str) -> None:
        _, sites = enrolled(tmp_path)
        path = sites["charite"].folder / rosters.PINNED_FILE
        pinned = content(path)
        rogue = Identity.generate("rogue").public_bytes.hex()
        pinned[part] = {**pinned["sites"], "hcuge": rogue} if part == "sites" else rogue
        write(path, pinned)
        with pytest.raises(RosterError, match="pinned roster was changed"):
            sites["charite"].roster()
        sites["charite"].pinned_or_none()
        path.write_bytes(path.read_bytes()[:-30])
        with pytest.raises(RosterError, match="damaged"):
            sites["charite"].roster()

    def test_a_roster_without_this_site_or_with_another_key_of_it_is_refused(self, tmp_path: Path) -> None:
        centre, sites = enrolled(tmp_path)
        good = self.roster(centre)
        others = tuple(member for member in good.members if member[0] != "charite")
        rogue = ("charite", Identity.generate("rogue").public_bytes)
        with pytest.raises(RosterError, match="is not in the roster"):
            sites["charite"].trust(Roster(good.aggregator, others), NOW)
        with pytest.raises(RosterError, match="another identity key"):
            sites["charite"].trust(Roster(good.aggregator, (rogue, *others)), NOW)
        with pytest.raises(RosterError, match="another aggregator"):
            sites["charite"].trust(Roster(Identity.generate("rogue").public_bytes, good.members), NOW)
        assert sites["charite"].roster() == good

    def test_the_digest_is_compared_in_full(self, tmp_path: Path) -> None:
        centre, _ = enrolled(tmp_path)
        roster = self.roster(centre)
        digits = roster.digest.hex()
        rosters.check_digest(roster, digits)
        rosters.check_digest(roster, " ".join([digits[:32].upper(), digits[32:]]) + "\n")
        with pytest.raises(RosterError, match="not the one given"):
            rosters.check_digest(roster, "0" * 64)
        for bad in ("", digits[:-1], digits[:40], digits + "0", "g" * 64):
            with pytest.raises(ConfigError, match="not a roster digest"):
                rosters.check_digest(roster, bad)


POLICY = """
[studies]
names = ["heart-*"]
[privacy]
max_epsilon = 3.0
max_delta = 1e-5
[algorithms.fedavg]
[models.mlp]
[[data]]
name = "heart"
source = "csv"
path = "{path}"
[[data.budget]]
epsilon = 10.0
delta = 1e-5
"""


class TestStatus:
    def levels(self, hospital: SiteFolder, day: int = 0) -> dict[str, Level]:
        return {check.subject: check.level for check in site_status(hospital, NOW + day * DAY)}

    def ready(self, folder: Path) -> SiteFolder:
        _, sites = enrolled(folder)
        table = folder / "heart.csv"
        table.touch()
        sites["charite"].policy_path.write_text(POLICY.format(path=table))
        return sites["charite"]

    def test_a_new_folder_needs_everything_but_its_keys(self, tmp_path: Path) -> None:
        assert self.levels(site(tmp_path, "charite")) == {
            "keys": Level.OK,
            "certificate": Level.BAD,
            "CA": Level.BAD,
            "roster": Level.BAD,
            "policy": Level.SOON,
        }

    def test_the_end_of_a_certificate_is_announced_four_weeks_ahead(self, tmp_path: Path) -> None:
        hospital = self.ready(tmp_path)
        assert set(self.levels(hospital).values()) == {Level.OK}
        found = [self.levels(hospital, day)["certificate"] for day in (61, 62, 89, 90, 91)]
        assert found == [Level.OK, Level.SOON, Level.SOON, Level.BAD, Level.BAD]
        check = next(item for item in site_status(hospital, NOW + 62 * DAY) if item.subject == "certificate")
        assert "until 2026-05-31 (28 days)" in check.text
        assert "secfed site renew" in check.remedy

    def test_every_kind_of_damage_is_named(self, tmp_path: Path) -> None:
        hospital = self.ready(tmp_path)
        (hospital.folder / "identity.key").chmod(0o644)
        assert self.levels(hospital)["keys"] is Level.BAD
        (hospital.folder / "identity.key").chmod(0o600)
        hospital.policy_path.write_text("approve = 3")
        assert self.levels(hospital)["policy"] is Level.BAD
        (hospital.folder / rosters.PINNED_FILE).write_text("{}")
        assert self.levels(hospital)["roster"] is Level.BAD
        (hospital.folder / "tls.pem").write_text("x")
        assert self.levels(hospital)["certificate"] is Level.BAD

    @pytest.mark.parametrize("passphrase", [None, "correct horse battery staple"])
    def test_a_key_that_is_not_the_enrolled_one_is_named_if_it_can_be_read(
        self, tmp_path: Path, passphrase: str | None
    ) -> None:
        hospital, other = self.ready(tmp_path), site(tmp_path, "other", passphrase=passphrase)
        for name in ("identity.key", "tls.key"):
            path = hospital.folder / name
            before = path.read_bytes()
            path.write_bytes((other.folder / name).read_bytes())
            assert (self.levels(hospital)["keys"] is Level.BAD) == (passphrase is None)
            path.write_bytes(b"")
            assert self.levels(hospital)["keys"] is Level.BAD
            path.write_bytes(before)
        path.unlink()
        found = next(item for item in site_status(hospital, NOW) if item.subject == "keys")
        assert found.text.endswith("tls.key: missing, or not the key of the certificate in use")

    def test_lost_memory_is_said_until_a_person_has_confirmed(self, tmp_path: Path) -> None:
        hospital = self.ready(tmp_path)
        assert "memory" not in self.levels(hospital)
        note_loss(hospital.state, NOW)
        assert self.levels(hospital)["memory"] is Level.BAD
        confirm_data_set(hospital.state, "heart")
        assert self.levels(hospital)["memory"] is Level.SOON
        let_policy_decide(hospital.state)
        assert "memory" not in self.levels(hospital)

    def test_a_missing_data_file_is_named(self, tmp_path: Path) -> None:
        hospital = self.ready(tmp_path)
        (tmp_path / "heart.csv").unlink()
        assert self.levels(hospital)["policy"] is Level.BAD
        hospital.policy_path.write_text(POLICY.format(path="heart.csv"))
        (hospital.folder / "heart.csv").touch()  # where the agent looks for it, whatever its own folder is
        assert self.levels(hospital)["policy"] is Level.OK

    def test_an_exchanged_request_is_noticed(self, tmp_path: Path) -> None:
        hospital = self.ready(tmp_path)
        changed = {**content(hospital.request_path), "identity_key": "00" * 32}
        write(hospital.request_path, changed)
        assert self.levels(hospital)["keys"] is Level.BAD
        with pytest.raises(BadSignature):
            hospital.request()
