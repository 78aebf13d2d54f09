"""Requests and replies: every change is noticed, and no key can be claimed without holding it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from secfed.crypto.codec import digest
from secfed.crypto.identity import Identity, fingerprint
from secfed.deploy.enrolment.messages import PROVE_TLS_KEY, SIGN_REPLY, SIGN_REQUEST, Reply, Request
from secfed.deploy.pki import certificate_checks, names
from secfed.deploy.pki.key_files import new_tls_key
from secfed.errors import BadSignature, ConfigError, SecfedError
from tests.deploy.enrol_case import DAY, NOW, a_request, consortium, content, enrolled, site


def signed(name: str = "charite") -> tuple[dict[str, Any], Identity, ec.EllipticCurvePrivateKey]:
    identity, tls_key = Identity.generate(name), new_tls_key()
    return Request.sign(identity, tls_key, NOW), identity, tls_key


class TestRequest:
    def test_it_says_who_and_with_which_keys(self) -> None:
        made, identity, tls_key = signed()
        request = Request.verified(made, "request")
        assert (request.site, request.identity_key) == ("charite", identity.public_bytes)
        assert request.tls_key == tls_key.public_key()
        assert request.made_s == int(NOW.timestamp())
        assert request.fingerprint == fingerprint(identity.public_bytes)

    def test_it_holds_no_private_key(self) -> None:
        made, identity, tls_key = signed()
        number = tls_key.private_numbers().private_value
        text = str(made)
        assert identity.private_bytes().hex() not in text
        assert f"{number:x}" not in text

    def test_every_changed_value_is_noticed(self) -> None:
        made, _, _ = signed()
        other, _, _ = signed("hcuge")
        for key in ("site", "identity_key", "tls_key", "identity_signature", "tls_signature"):
            with pytest.raises(BadSignature):
                Request.verified({**made, key: other[key]}, "request")
        with pytest.raises(BadSignature):
            Request.verified({**made, "made_s": made["made_s"] + 1}, "request")

    def test_somebody_elses_tls_key_cannot_be_claimed(self) -> None:
        """Signed by the thief's identity; the proof of possession is what is missing."""
        victim = new_tls_key()
        identity = Identity.generate("thief")
        claimed = Request("thief", identity.public_bytes, victim.public_key(), int(NOW.timestamp()))
        made = Request.sign(identity, new_tls_key(), NOW)
        made["tls_key"] = certificate_checks.public_der(victim).hex()
        made["identity_signature"] = identity.sign(SIGN_REQUEST, claimed.body).hex()
        with pytest.raises(BadSignature, match="does not hold its TLS key"):
            Request.verified(made, "request")

    def test_somebody_elses_identity_cannot_be_claimed(self) -> None:
        victim, tls_key = Identity.generate("charite"), new_tls_key()
        made = Request.sign(Identity.generate("charite"), tls_key, NOW)
        made["identity_key"] = victim.public_bytes.hex()
        claimed = Request("charite", victim.public_bytes, tls_key.public_key(), made["made_s"])
        signature = tls_key.sign(digest(PROVE_TLS_KEY, claimed.body), ec.ECDSA(SHA256()))
        with pytest.raises(BadSignature, match="'charite'"):
            Request.verified({**made, "tls_signature": signature.hex()}, "request")

    @pytest.mark.parametrize(
        "key", [ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()]
    )
    def test_a_tls_key_of_another_type_is_refused(self, key: ec.EllipticCurvePrivateKey) -> None:
        made, _, _ = signed()
        spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        with pytest.raises(ConfigError, match="not a P-256 public key"):
            Request.verified({**made, "tls_key": spki.hex()}, "request")

    @pytest.mark.parametrize(
        "change",
        [
            {"kind": "secfed enrolment reply"},
            {"version": 2},
            {"version": "1"},
            {"identity_key": "ab"},
            {"identity_key": "AB" * 32},
            {"tls_key": "ff" * 91},
            {"tls_key": "ab" * 1000},
            {"made_s": -1},
            {"made_s": 1.5},
            {"made_s": 1 << 50},
            {"identity_signature": ""},
            {"identity_signature": None},
            {"admin": True},
        ],
    )
    def test_what_is_not_well_formed_is_refused_by_key(self, change: dict[str, Any]) -> None:
        made, _, _ = signed()
        with pytest.raises(ConfigError, match=rf"request\.{next(iter(change))}"):
            Request.verified({**made, **change}, "request")

    @pytest.mark.parametrize("missing", ["site", "identity_key", "tls_key", "made_s", "tls_signature"])
    def test_a_missing_value_is_named(self, missing: str) -> None:
        made, _, _ = signed()
        del made[missing]
        with pytest.raises(ConfigError, match=rf"request\.{missing}: is missing"):
            Request.verified(made, "request")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=5,
)


class TestAnythingElse:
    @given(st.dictionaries(st.text(), JSON, max_size=4), st.sampled_from([Request, Reply]))
    def test_random_objects_are_refused_cleanly(
        self, found: dict[str, Any], kind: type[Request | Reply]
    ) -> None:
        with pytest.raises(SecfedError):
            kind.verified(found, "file") if kind is Request else Reply.verified(found, "file", NOW)

    def test_another_file_of_a_consortium_is_called_so(self, tmp_path: Path) -> None:
        centre, sites = enrolled(tmp_path)
        roster = content(centre.roster_path)
        with pytest.raises(ConfigError, match="file: not a reply"):
            Reply.verified(roster, "file", NOW)
        for other in (roster, content(next(iter(sites.values())).folder / "consortium.json")):
            with pytest.raises(ConfigError, match="file: not a request"):
                Request.verified(other, "file")

    @given(st.sampled_from(list(signed()[0])), JSON)
    def test_no_random_value_passes_for_a_signed_one(self, key: str, value: Any) -> None:
        made, _, _ = signed()
        if value != made[key]:
            with pytest.raises(SecfedError):
                Request.verified({**made, key: value}, "request")


class TestReply:
    def reply(self, folder: Path) -> dict[str, Any]:
        centre, hospital = consortium(folder), site(folder, "charite")
        return content(centre.admit(hospital.request(), now=NOW, passphrase=None))

    def test_it_says_where_and_who_the_aggregator_is(self, tmp_path: Path) -> None:
        reply = Reply.verified(self.reply(tmp_path), "reply", NOW)
        assert (reply.consortium, reply.site) == ("Heart study", "charite")
        assert reply.aggregator.address == "localhost:8443"
        assert certificate_checks.site_of(reply.certificate) == "charite"

    def test_every_changed_value_is_noticed(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        made, other = self.reply(tmp_path / "a"), self.reply(tmp_path / "b")
        changes: list[dict[str, Any]] = [
            {key: other[key]} for key in ("certificate", "ca", "aggregator_key", "signature")
        ]
        changes += [{"port": 1}, {"hosts": ["evil.example"]}, {"hosts": made["hosts"] + ["x"]}]
        changes += [{"site": "hcuge"}, {"consortium": "Other"}]
        for change in changes:
            with pytest.raises(BadSignature, match="was changed"):
                Reply.verified({**made, **change}, "reply", NOW)

    def test_a_ca_of_ones_own_does_not_vouch_for_the_certificate_of_another(self, tmp_path: Path) -> None:
        """CA and signature replaced together: consistent, but the certificate is not from that CA."""
        from secfed.deploy.pki.certificates import Authority

        rogue = Authority.create(new_tls_key(), "Heart study", ("localhost",), NOW)
        made = self.reply(tmp_path)
        honest = Reply.verified(made, "reply", NOW)
        forged = Reply(
            honest.consortium, honest.site, honest.certificate, rogue.certificate, honest.aggregator
        )
        with pytest.raises(ConfigError, match="not from this consortium's CA"):
            Reply.verified(forged.to_content(rogue.sign(forged.body)), "reply", NOW)

    def test_an_old_reply_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="expired on"):
            Reply.verified(self.reply(tmp_path), "reply", NOW + 91 * DAY)

    def test_labels_of_enrolment_are_used_nowhere_else(self) -> None:
        from secfed.crypto import labels

        protocol = {value for name, value in vars(labels).items() if name.isupper()}
        own = {SIGN_REQUEST, PROVE_TLS_KEY, SIGN_REPLY}
        assert len(own) == 3
        assert not own & protocol


BAD_SITES = ["", "x" * 64, "a b", "a\n", "a\x00", "Charite", "-a", ".a", "a/b", "../a", "spital-ä", "a%"]
BAD_HOSTS = ["", "x" * 64, "a b", "a\n", "https://a", "a:8443", "*.a.org", "a..b", "-a", "a_b", "1.2.3"]


class TestNames:
    @pytest.mark.parametrize("name", ["charite", "uk-hd", "site_1", "0", "a.b", "x" * 63])
    def test_good_site_names(self, name: str) -> None:
        assert names.check_site_name(name) == name
        assert a_request(name).site == name

    @pytest.mark.parametrize("name", [*BAD_SITES, "aggregator"])
    def test_bad_site_names(self, name: str) -> None:
        with pytest.raises(ConfigError, match="site name"):
            names.check_site_name(name)
        with pytest.raises(ConfigError):
            a_request(name)

    def test_good_hosts_have_one_spelling(self) -> None:
        for host in ("localhost", "fl.example.org", "192.0.2.1", "2001:db8::1", "a-b.c"):
            assert names.check_host(host) == host
        assert names.check_host("FL.Example.ORG") == "fl.example.org"
        assert names.check_host("2001:DB8:0::1") == "2001:db8::1"

    @pytest.mark.parametrize("host", [*BAD_HOSTS, "1.2.3.4.5"])
    def test_bad_hosts(self, host: str) -> None:
        with pytest.raises(ConfigError, match="neither a host name nor an IP address"):
            names.check_host(host)

    @pytest.mark.parametrize("name", ["", " a", "a\n", "x" * 64, "a/b", "a=b", "é"])
    def test_bad_consortium_names(self, name: str) -> None:
        with pytest.raises(ConfigError, match="consortium name"):
            names.check_consortium_name(name)
