"""ID tokens: who signed in, and everything that does not say so."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("authlib", reason="needs the extra oidc")

from secfed.console.id_token import person_of
from secfed.deploy.admission.person import Person
from secfed.deploy.enrolment.sign_in_settings import OidcSection
from secfed.errors import PolicyRefused
from tests.secfed.console.provider_case import CLIENT, WEISS, jwks, key, signed

ISSUER = "https://login.uk.example/realms/uk"
NOW = 1_800_000_000
OURS, RSA, OTHER = key("ours"), key("rsa", "RSA"), key("other")
KEYS = jwks(OURS, RSA)
CLAIMS = {"iss": ISSUER, "aud": CLIENT, "iat": NOW, "exp": NOW + 300, "nonce": "n", "auth_time": NOW, **WEISS}
SETTINGS = {"issuer": ISSUER, "client_id": CLIENT}


def asked(token: str, keys: Any = KEYS, **settings: Any) -> Person:
    section = OidcSection(**{**SETTINGS, **settings})
    return person_of(token, keys, section, nonce="n", begun_s=NOW - 5, now_s=NOW)


def refusal(token: str, keys: Any = KEYS, **settings: Any) -> str:
    with pytest.raises(PolicyRefused) as caught:
        asked(token, keys, **settings)
    assert caught.value.remedy
    assert caught.value.message.startswith("not signed in: ")
    assert token not in str(caught.value)
    return caught.value.message


def changed(**claims: Any) -> str:
    """A token with other claims; None takes one away."""
    return signed({name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}, OURS)


@pytest.mark.parametrize(("by", "alg"), [(OURS, "ES256"), (RSA, "RS256"), (RSA, "PS256"), (RSA, "RS512")])
def test_a_token_of_the_provider_for_this_sign_in_says_who(by: Any, alg: str) -> None:
    person = asked(signed(CLAIMS, by, alg))
    assert person.name == f"dr.weiss@uk.example (OpenID Connect: {ISSUER})"
    assert person.subject == f"{ISSUER} {CLIENT} 5f0c-77"
    assert asked(signed({**CLAIMS, "aud": [CLIENT]}, by, alg)) == person


def test_what_the_log_calls_a_person_is_chosen_and_who_it_is_stays() -> None:
    named = {
        claim: asked(signed(CLAIMS, OURS), claim=claim) for claim in ("email", "preferred_username", "sub")
    }
    assert [one.name.split()[0] for one in named.values()] == ["dr.weiss@uk.example", "weiss", "5f0c-77"]
    assert len({one.subject for one in named.values()}) == 1
    assert asked(changed(email=None, email_verified=None), claim="sub") == named["sub"]


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def part(content: Any) -> str:
    return encoded(json.dumps(content).encode())


def unsigned() -> str:
    return f"{part({'alg': 'none', 'kid': 'ours'})}.{part(CLAIMS)}."


def with_hmac(secret: bytes, kid: str) -> str:
    """A token that is signed with what everybody knows: RFC 8725, section 2.1."""
    text = f"{part({'alg': 'HS256', 'kid': kid})}.{part(CLAIMS)}"
    signature = hmac.digest(secret, text.encode(), "sha256")
    return f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def tampered() -> str:
    header, _, signature = signed(CLAIMS, OURS).split(".")
    return f"{header}.{part({**CLAIMS, 'sub': 'somebody-else'})}.{signature}"


@pytest.mark.parametrize(
    "token",
    [
        unsigned,
        lambda: with_hmac(RSA.as_pem(private=False), "rsa"),
        lambda: signed(CLAIMS, OTHER),
        lambda: signed(CLAIMS, key("ours")),  # another key of the same name
        tampered,
        lambda: "x",
        lambda: "a.b.c",
        lambda: f"{encoded(b'[' * 100_000)}.e30.AA",
        lambda: f"{part({'alg': ['ES256'], 'kid': []})}.e30.AA",
    ],
    ids=["alg none", "public key", "unknown key", "other key", "tampered", "x", "a.b", "deep", "[]"],
)  # fmt: skip
def test_what_the_provider_did_not_sign_is_refused(token: Callable[[], str]) -> None:
    assert "no valid signature" in refusal(token())


def test_a_secret_among_published_keys_signs_nothing() -> None:
    secret = b"a secret that a provider published"
    encoded = base64.urlsafe_b64encode(secret).decode().rstrip("=")
    published = {"keys": [*KEYS["keys"], {"kty": "oct", "k": encoded, "kid": "secret", "use": "sig"}]}
    assert "no valid signature" in refusal(with_hmac(secret, "secret"), published)
    assert asked(signed(CLAIMS, OURS), published).subject


def test_a_key_for_encryption_signs_nothing() -> None:
    published = {"keys": [{**one, "use": "enc"} for one in KEYS["keys"]]}
    assert "no valid signature" in refusal(signed(CLAIMS, OURS), published)


@pytest.mark.parametrize(
    "odd",
    [
        {"kty": "EC", "crv": "brainpoolP256r1", "x": "AA", "y": "AA", "kid": "b"},
        {"kty": "OKP", "crv": "Ed25519", "x": "AA", "kid": "o"},
        {"kty": "RSA", "n": "AQ", "e": "AQ"}, {"kty": "RSA"}, {"kid": "x"}, "x", None, 7,
        {**KEYS["keys"][0], "kid": "y", "x5c": "not a list"}, {**KEYS["keys"][0], "kid": 7},
        {**KEYS["keys"][0], "kid": "z", "use": "odd"}, {**KEYS["keys"][0], "kid": "z", "key_ops": "verify"},
    ],
)  # fmt: skip
def test_one_odd_key_locks_nobody_out(odd: Any) -> None:
    """RFC 7517, section 5."""
    for keys in ([odd, *KEYS["keys"]], [*KEYS["keys"], odd]):
        assert asked(signed(CLAIMS, OURS), {"keys": keys}).subject


@pytest.mark.parametrize(
    "letter",
    ["\u3164", "\u034f", "\ufe0f", "\u0301", "\u115f", "\u2800", "\uff0e", "\u200b", "\u00ad", "\u202e",
     "\u2066", "\x00", "\x1b", "\ufb01", "\U000e0041", "\u180b", "\u212b", "\u20dd", "\ue000"],
)  # fmt: skip
def test_a_name_that_could_be_read_otherwise_than_it_is_written_is_refused(letter: str) -> None:
    assert "has no email" in refusal(changed(email=f"dr.weiss{letter}@uk.example"))


@pytest.mark.parametrize(
    "name", ["dr.weiß@uk.example", "žofie@uk.example", "o'neil+x@uk.example", "王@uk.example"]
)
def test_names_of_other_languages_are_names(name: str) -> None:
    assert asked(changed(email=name)).name.startswith(f"{name} (")


def test_a_name_that_pages_would_shorten_is_refused() -> None:
    assert "has no email" in refusal(changed(email=f"heart-{'0' * 64}"))


@pytest.mark.parametrize(
    "keys", [{}, {"keys": []}, {"keys": None}, {"keys": ["x"]}, {"keys": [{"kty": "EC"}]}]
)
def test_keys_that_cannot_be_read_are_no_reason_to_believe_a_token(keys: Any) -> None:
    assert "no valid signature" in refusal(signed(CLAIMS, OURS), keys)


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({"iss": "https://login.evil.example"}, "(iss)"),
        ({"iss": None}, "(iss)"),
        ({"aud": "another-client"}, "(azp)"),
        ({"aud": "another-client", "azp": CLIENT}, "not for this client"),
        ({"aud": [CLIENT, "another-client"], "azp": CLIENT}, "not for it alone"),
        ({"aud": None}, "(aud)"),
        ({"azp": "another-client"}, "(azp)"),
        ({"nonce": "of another sign-in"}, "(nonce)"),
        ({"nonce": None}, "(nonce)"),
        ({"exp": NOW - 61}, "has expired"),
        ({"exp": None}, "(exp)"),
        ({"exp": "soon"}, "(exp)"),
        ({"iat": NOW + 61}, "(iat)"),
        ({"iat": None}, "(iat)"),
        ({"auth_time": NOW - 66}, "did not ask for the password again"),
        ({"auth_time": NOW + 61}, "did not ask for the password again"),
        ({"auth_time": None}, "does not say when it asked for the password"),
        ({"auth_time": True}, "does not say when it asked for the password"),
        ({"sub": None}, "(sub)"),
        ({"sub": ""}, "(sub)"),
        ({"sub": "a b"}, "(sub)"),
        ({"sub": 7}, "(sub)"),
        ({"email": None}, "has no email"),
        ({"email": "a@uk.example, b@uk.example"}, "has no email"),
        ({"email": "a\u202e@uk.example"}, "has no email"),
        ({"email": f"a@x({ISSUER})"}, "has no email"),
        ({"email": "a" * 201}, "has no email"),
        ({"email_verified": False}, "does not vouch for the e-mail address"),
        ({"email_verified": None}, "does not vouch for the e-mail address"),
        ({"email_verified": "true"}, "does not vouch for the e-mail address"),
    ],
)  # fmt: skip
def test_a_token_for_something_else_or_of_nobody_is_refused(claims: dict[str, Any], told: str) -> None:
    assert told in refusal(changed(**claims))


def test_clocks_may_differ_by_a_minute() -> None:
    assert asked(changed(exp=NOW - 59, iat=NOW + 59, auth_time=NOW - 64)).subject


def test_who_may_decide() -> None:
    token = signed(CLAIMS, OURS)
    assert asked(token, allowed=("it.braun@uk.example", "dr.weiss@uk.example")).subject
    assert "dr.weiss@uk.example is not among oidc.allowed" in refusal(token, allowed=("it.braun@uk.example",))
    assert "is not among" in refusal(token, allowed=("5f0c-77", "weiss"))  # other claims of the same person


def test_a_provider_that_need_not_ask_for_the_password_again() -> None:
    assert asked(changed(auth_time=None), reauthenticate=False).subject
    assert asked(changed(auth_time=NOW - 86_400), reauthenticate=False).subject
