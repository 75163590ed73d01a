"""Signed tokens (JWT): the keys that verify them, and what their claims mean.

Each key verifies one algorithm, which depends on the key and never on what a token says. A public key is never used as
a secret, and no key accepts the algorithm `none`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from lockstep.core.rights import ROLES, rules_of
from lockstep.errors import InvalidOption, InvalidRequest, Unauthorized
from lockstep.server.auth.callers import Caller

SKEW_SECONDS = 30
TOKEN_LENGTH_MAX = 8_192
SECRET_BYTES_MIN = 32
RSA_BITS_MIN = 2_048
KEYS_MAX = 50
RULES_CLAIM = "lockstep"
_SUBJECT_LENGTH_MAX = 255
_LAST_SECOND = 250_000_000_000
"""In the year 9892: a token that expires later is no time that can be shown, such as one in milliseconds."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key with the one algorithm that it verifies."""

    algorithm: str
    key: Any
    id: str | None = None
    """`kid`: the name by which tokens refer to it."""

    def may_verify(self, algorithm: object, key_id: object) -> bool:
        return algorithm == self.algorithm and (self.id is None or key_id is None or key_id == self.id)


@dataclass(frozen=True, slots=True)
class Expected:
    """What tokens must contain, besides a valid signature."""

    issuer: str | None = None
    audience: str | None = None
    roles: Mapping[str, tuple[str, ...]] | None = None
    """Roles besides the built-in ones, and their rules."""


def key_of_secret(secret: str) -> TokenKey:
    if len(secret.encode()) < SECRET_BYTES_MIN:
        raise InvalidOption(f"auth_jwt_secret is not valid: it must have at least {SECRET_BYTES_MIN} bytes")
    if "-----BEGIN" in secret:
        raise InvalidOption("auth_jwt_secret is not valid: a public key belongs into the file of auth_jwt_public_key")
    return TokenKey("HS256", secret.encode())


def key_of_pem(pem: bytes, source: str) -> TokenKey:
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidOption(f"{source} is not valid: it must be a public key in PEM") from error
    algorithm = _algorithm_of(key)
    if algorithm is None:
        text = f"it must be an RSA key of {RSA_BITS_MIN} bits or more, an elliptic curve key on P-256, or Ed25519"
        raise InvalidOption(f"{source} is not valid: {text}")
    return TokenKey(algorithm, key)


def _algorithm_of(key: object) -> str | None:
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= RSA_BITS_MIN:
        return "RS256"
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return "ES256"
    return "EdDSA" if isinstance(key, ed25519.Ed25519PublicKey) else None


_READERS = {"RSA": RSAAlgorithm.from_jwk, "EC": ECAlgorithm.from_jwk, "OKP": OKPAlgorithm.from_jwk}


def keys_of_set(text: bytes, source: str) -> list[TokenKey]:
    """The keys of a JSON Web Key Set that verify signatures with a known algorithm; other keys are left out. So are
    secrets: a key in a public set is not secret. Raises InvalidOption."""
    try:
        listed = json.loads(text)["keys"]
        if not isinstance(listed, list) or len(listed) > KEYS_MAX:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidOption(f"{source} is no JSON Web Key Set with at most {KEYS_MAX} keys") from error
    return [key for one in listed if (key := _key_of(one)) is not None]


def _key_of(given: Any) -> TokenKey | None:
    if not isinstance(given, dict) or given.get("kty") not in _READERS or given.get("use", "sig") != "sig":
        return None
    try:
        public = {name: value for name, value in given.items() if name != "d"}
        key = _READERS[given["kty"]](public)
    except (jwt.PyJWTError, ValueError, KeyError, TypeError):
        return None
    algorithm = _algorithm_of(key)
    if algorithm is None or given.get("alg", algorithm) != algorithm:
        return None
    key_id = given.get("kid")
    return TokenKey(algorithm, key, key_id if isinstance(key_id, str) else None)


def header_of(token: str) -> dict[str, Any]:
    """The header of a token, which is not verified yet. Raises Unauthorized."""
    if len(token) > TOKEN_LENGTH_MAX:
        raise Unauthorized(f"the token has more than {TOKEN_LENGTH_MAX} characters")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise Unauthorized("the token is neither an API key nor a JWT") from error
    if "crit" in header:
        raise Unauthorized("the token has critical extensions, which are not known here")
    return header


def candidates(header: Mapping[str, Any], keys: Iterable[TokenKey]) -> list[TokenKey]:
    return [key for key in keys if key.may_verify(header.get("alg"), header.get("kid"))]


def claims_of(token: str, keys: Sequence[TokenKey], expected: Expected) -> dict[str, Any]:
    """The claims of a token that one of the keys has signed and that is valid now. Raises Unauthorized."""
    for key in keys:
        try:
            return jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm],
                issuer=expected.issuer,
                audience=expected.audience,
                leeway=SKEW_SECONDS,
                options={"require": ["exp"]},
            )
        except jwt.InvalidSignatureError:
            continue
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise Unauthorized(_what_is_wrong(error)) from error
    raise Unauthorized("no key of this server has signed the token")


def _what_is_wrong(error: Exception) -> str:
    known: tuple[tuple[type[Exception], str], ...] = (
        (jwt.ExpiredSignatureError, "the token has expired"),
        (jwt.ImmatureSignatureError, "the token is not valid yet"),
        (jwt.InvalidAudienceError, "the token is for another audience"),
        (jwt.InvalidIssuerError, "the token is from another issuer"),
    )
    text = next((text for kind, text in known if isinstance(error, kind)), None)
    if text is None and isinstance(error, jwt.MissingRequiredClaimError):
        text = f"the token has no claim {error.claim}"
    return text or "the token is not valid"


def caller_of(claims: Mapping[str, Any], expected: Expected) -> Caller:
    """The caller of a token: its `sub`, with the rights of its `role`, its `roles`, and its own rules."""
    roles = _texts(claims.get("role")) + _texts(claims.get("roles"))
    subject = claims.get("sub")
    name = subject[:_SUBJECT_LENGTH_MAX] if isinstance(subject, str) and subject.isprintable() else ""
    known = {**(expected.roles or {}), **ROLES}
    try:
        rights = rules_of(roles, _texts(claims.get(RULES_CLAIM)), known=known)
    except InvalidRequest as error:
        raise Unauthorized(f"the claim {RULES_CLAIM} of the token is not valid: {error.message}") from error
    return Caller(
        "token",
        name or "token",
        rights,
        role=", ".join(role for role in roles if role in known)[:_SUBJECT_LENGTH_MAX] or None,
        sub=name or None,
        expires_at=min(int(claims["exp"]), _LAST_SECOND) + SKEW_SECONDS,
    )


def _texts(claim: object) -> list[str]:
    """A string, or the strings of a list."""
    if isinstance(claim, str):
        return [claim]
    return [one for one in claim if isinstance(one, str)] if isinstance(claim, list) else []
