"""An ID token: who signed in, if it is from the configured provider, for the console, and for this sign-in.

No I/O. Authlib checks signature, issuer, times, nonce and authorized party; the rest is here:

1. Only signatures by keys that the provider publishes: no ``none``, no HMAC (RFC 8725, sections 2.1 and 3.1).
2. The console is the only audience: a token of another client, or for several, is refused.
3. The person was asked for the password during this sign-in, where the settings want that (``auth_time``).
4. The provider vouches for an e-mail address, or it is not taken for a name.

Source: OpenID Connect Core 1.0, sections 2, 3.1.3.7 and 5.1.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import ExpiredTokenError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from secfed.audit.privacy import phrases
from secfed.deploy.admission.person import Person
from secfed.deploy.enrolment.sign_in_settings import OidcSection
from secfed.errors import PolicyRefused

ALGORITHMS: Final = tuple(f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512))
_LEEWAY_S: Final = 60  # by which the clocks may differ
# What comes of content that no provider should send: deep nesting and endless numbers included.
UNREADABLE: Final = (
    JoseError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
_NAME: Final = re.compile(r"[^\s,()]{1,200}")  # commas and brackets stand around names in the decision log
_SUBJECT: Final = re.compile(r"[\x21-\x7e]{1,255}")
_AGAIN: Final = "sign in again; if it stays so, ask who runs the identity provider"


def person_of(
    token: str,
    published: Mapping[str, Any],
    settings: OidcSection,
    *,
    nonce: str,
    begun_s: float,
    now_s: float,
) -> Person:
    """Who signed in.

    Args:
        token: as the provider's token endpoint gave it.
        published: the provider's keys, a JSON Web Key Set.
        settings: those of the site.
        nonce: that the sign-in was begun with.
        begun_s: when it was begun; seconds since 1970.
        now_s: the time; seconds since 1970.

    Raises:
        PolicyRefused: the token does not say so, or this person may not decide here. Never quotes the token.
    """
    claims = _verified(token, published, settings, nonce, int(now_s))
    if claims["aud"] not in (settings.client_id, [settings.client_id]):
        raise refused("the ID token is not for this client, or not for it alone")
    if settings.reauthenticate:
        _check_fresh(claims.get("auth_time"), begun_s, now_s)
    subject = claims["sub"]
    if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject):
        raise refused("the ID token names nobody (sub)")
    return Person.signed_in(_name(claims, settings), str(settings.issuer), str(settings.client_id), subject)


def refused(why: str, remedy: str = _AGAIN) -> PolicyRefused:
    """The error where a sign-in comes to nothing."""
    return PolicyRefused(f"not signed in: {why}", remedy=remedy)


def _verified(
    token: str, published: Mapping[str, Any], settings: OidcSection, nonce: str, now_s: int
) -> Mapping[str, Any]:
    """The claims, if signature, issuer, times, nonce and authorized party are right."""
    try:
        # Providers put parameters of their own into the header.
        registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
        found = jwt.decode(token, _keys(published), registry=registry)
    except UNREADABLE:
        raise refused("the ID token has no valid signature of the identity provider") from None
    wanted = {"iss": {"essential": True, "value": settings.issuer}}
    claims = CodeIDToken(
        found.claims, found.header, wanted, {"nonce": nonce, "client_id": settings.client_id}
    )
    try:
        claims.validate(now=now_s, leeway=_LEEWAY_S)
    except ExpiredTokenError:
        raise refused(
            "the ID token has expired", "compare this machine's clock with the provider's"
        ) from None
    except UNREADABLE as error:
        which = str(getattr(error, "claim", "")) or "a claim"
        raise refused(f"the ID token is not an answer to this sign-in ({which})") from None
    return dict(claims)


def _keys(published: Mapping[str, Any]) -> KeySet:
    """Those published keys that can be used; the others are no reason to refuse (RFC 7517, section 5)."""
    keys = []
    for one in published["keys"]:
        with suppress(*UNREADABLE):
            if one["kty"] in ("RSA", "EC"):
                keys += KeySet.import_key_set({"keys": [one]}).keys
    return KeySet(keys)


def _check_fresh(auth_time: object, begun_s: float, now_s: float) -> None:
    """Whether the person was asked for the password after the sign-in was begun."""
    if type(auth_time) not in (int, float):
        raise refused(
            "the identity provider does not say when it asked for the password (auth_time)",
            "let it add that claim to ID tokens, or set oidc.reauthenticate = false in site.toml",
        )
    if not begun_s - _LEEWAY_S <= float(str(auth_time)) <= now_s + _LEEWAY_S:
        raise refused("the identity provider did not ask for the password again")


def _name(claims: Mapping[str, Any], settings: OidcSection) -> str:
    """What the decision log calls this person, who may decide here."""
    name = claims.get(settings.claim)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not _is_plain(name):
        raise refused(
            f"the ID token has no {settings.claim} that can be written down as it would be read",
            'let the identity provider add it, or set oidc.claim = "sub" in site.toml',
        )
    if settings.claim == "email" and claims.get("email_verified") is not True:
        raise refused(
            "the identity provider does not vouch for the e-mail address (email_verified)",
            "let it verify addresses, or set another oidc.claim in site.toml",
        )
    if settings.allowed is not None and name not in settings.allowed:
        raise refused(
            f"{name} is not among oidc.allowed of site.toml", "ask the administrator of this machine"
        )
    return name


def _is_plain(name: str) -> bool:
    """Whether a name is read as it is written: no marks on letters, and no second way to write it."""
    if any(unicodedata.category(letter).startswith("M") for letter in name):
        return False
    return phrases.printable(name) == name == unicodedata.normalize("NFKC", name)
