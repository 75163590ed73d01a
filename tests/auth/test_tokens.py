"""Tokens: those that are taken, and every kind that is not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from asking import asking
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from lockstep.config import Config
from lockstep.errors import InvalidOption
from lockstep.server.auth import key_sets
from lockstep.server.auth.key_sets import TokenKeys

SECRET = "a secret of more than 64 bytes, because HS512 wants one as long as that"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
KEYS: dict[str, Any] = {"RS256": RSA_KEY, "ES256": EC_KEY, "EdDSA": ED_KEY}
READERS: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}


def pem(algorithm: str, directory: Path) -> str:
    path = directory / f"{algorithm}.pem"
    path.write_bytes(KEYS[algorithm].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return str(path)


def jwk(algorithm: str, key: Any = None, **fields: str) -> dict[str, str]:
    return {**READERS[algorithm].to_jwk((key or KEYS[algorithm]).public_key(), as_dict=True), **fields}


def claims(**changes: Any) -> dict[str, Any]:
    given = {"sub": "ann", "exp": time.time() + 600, "role": "read-write", **changes}
    return {name: value for name, value in given.items() if value is not None}


def signed(key: Any = SECRET, algorithm: str = "HS256", headers: dict[str, Any] | None = None, **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm, headers=headers)


def by_hand(header: dict[str, Any], content: dict[str, Any], sign: Callable[[bytes], bytes] = lambda _: b"") -> str:
    """A token that no library would make."""

    def part(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    text = part(json.dumps(header).encode()) + b"." + part(json.dumps(content).encode())
    return (text + b"." + part(sign(text))).decode()


async def whoami(token: str, **settings: Any) -> tuple[int, Any]:
    async with asking(**settings) as ask:
        answer = await ask("GET", "/api/v1/whoami", token=token)
        return answer.status, answer.json()


async def test_token_by_secret_is_taken_with_its_role_and_rules() -> None:
    status, said = await whoami(signed(lockstep=["admin mine.*"]), auth_jwt_secret=SECRET)
    assert (status, said["name"], said["kind"], said["role"]) == (200, "ann", "token", "read-write")
    assert said["rights"] == ["push", "pop", "browse", "manage"]
    assert "admin mine.*" in said["rules"]


@pytest.mark.parametrize("algorithm", KEYS)
async def test_token_by_public_key_is_taken(algorithm: str, tmp_path: Path) -> None:
    token = signed(KEYS[algorithm], algorithm)
    assert (await whoami(token, auth_jwt_public_key=pem(algorithm, tmp_path)))[0] == 200
    (tmp_path / "set.json").write_text(json.dumps({"keys": [jwk(algorithm, kid="1"), {"kty": "oct", "k": "AAAA"}]}))
    for headers in (None, {"kid": "1"}):
        token = signed(KEYS[algorithm], algorithm, headers)
        assert (await whoami(token, auth_jwks=str(tmp_path / "set.json")))[0] == 200
    token = signed(KEYS[algorithm], algorithm, {"kid": "2"})
    assert (await whoami(token, auth_jwks=str(tmp_path / "set.json")))[0] == 401


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (
            lambda: signed("another secret of more than 32 bytes, which nobody has told this server"),
            "no key of this server",
        ),
        (lambda: signed(exp=time.time() - 31), "expired"),
        (lambda: signed(exp=None), "no claim exp"),
        (lambda: signed(exp="soon"), "not valid"),
        (lambda: signed(exp=float("inf")), "not valid"),
        (lambda: signed(nbf=time.time() + 60), "not valid yet"),
        (lambda: signed(aud="others"), "another audience"),
        (lambda: signed(iss="others"), "another issuer"),
        (lambda: signed(iss=None), "no claim iss"),
        (lambda: signed(algorithm="HS512"), "no key of this server"),
        (lambda: signed(headers={"crit": ["b64"], "b64": False}), "critical"),
        (lambda: signed(lockstep=["eat everything"]), "claim lockstep"),
        (lambda: by_hand({"alg": "none"}, claims()), "no key of this server"),
        (lambda: by_hand({"alg": "None"}, claims()), "no key of this server"),
        (lambda: by_hand({}, claims()), "no key of this server"),
        (lambda: signed() + "x", "no key of this server"),
        (lambda: signed().rpartition(".")[0] + ".", "no key of this server"),
        (lambda: "a.b.c", "neither"),
        (lambda: "garbage", "neither"),
        (lambda: "x" * 10_000, "more than"),
    ],
)
async def test_token_that_is_not_valid_is_refused(token: Callable[[], str], said: str) -> None:
    issuer = "us" if "iss" in said else None
    status, answer = await whoami(token(), auth_jwt_secret=SECRET, auth_issuer=issuer)
    assert status == 401
    assert said in answer["error"]


async def test_audience_and_issuer_must_fit() -> None:
    expected = {"auth_jwt_secret": SECRET, "auth_issuer": "us", "auth_audience": "lockstep"}
    assert (await whoami(signed(iss="us", aud="lockstep"), **expected))[0] == 200
    assert (await whoami(signed(iss="us", aud=["x", "lockstep"]), **expected))[0] == 200
    assert (await whoami(signed(iss="us", aud="x"), **expected))[0] == 401
    assert (await whoami(signed(iss="us"), **expected))[0] == 401
    assert (await whoami(signed(aud="lockstep"), **expected))[0] == 401


async def test_skew_of_half_a_minute_is_allowed() -> None:
    assert (await whoami(signed(exp=time.time() - 10), auth_jwt_secret=SECRET))[0] == 200
    assert (await whoami(signed(nbf=time.time() + 10), auth_jwt_secret=SECRET))[0] == 200


@pytest.mark.parametrize("exp", [4e12, 10**18, 1e308, 10**400, "9" * 30])
async def test_token_may_expire_at_a_time_that_cannot_be_shown(exp: object) -> None:
    """Such as one in milliseconds, or a number with more digits than a float holds."""
    assert (await whoami(signed(exp=exp), auth_jwt_secret=SECRET))[0] == 200


async def test_public_key_is_never_taken_for_a_secret(tmp_path: Path) -> None:
    path = pem("RS256", tmp_path)
    public = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def sign(text: bytes) -> bytes:
        return hmac.new(public, text, hashlib.sha256).digest()

    confused = by_hand({"alg": "HS256", "typ": "JWT"}, claims(role="admin"), sign)
    assert (await whoami(confused, auth_jwt_public_key=path))[0] == 401
    assert (await whoami(confused, auth_jwt_public_key=path, auth_jwt_secret=SECRET))[0] == 401
    (tmp_path / "set.json").write_text(json.dumps({"keys": [jwk("RS256", kid="1")]}))
    assert (await whoami(confused, auth_jwks=str(tmp_path / "set.json")))[0] == 401


async def test_key_in_the_token_is_not_looked_at(tmp_path: Path) -> None:
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    headers = {"jwk": jwk("RS256", stranger), "jku": "https://evil.example/set", "x5u": "https://evil.example/x"}
    token = signed(stranger, "RS256", headers)
    assert (await whoami(token, auth_jwt_public_key=pem("RS256", tmp_path)))[0] == 401


async def test_tokens_are_refused_where_no_key_is_known() -> None:
    assert (await whoami(signed()))[0] == 401


async def test_token_without_rights_gets_nothing() -> None:
    status, answer = await whoami(signed(role="unknown"), auth_jwt_secret=SECRET)
    assert (status, answer["code"]) == (403, "forbidden")


async def test_roles_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "roles.toml").write_text('billing = ["push,pop billing.*"]\n')
    settings = {"auth_jwt_secret": SECRET, "auth_roles_file": str(tmp_path / "roles.toml")}
    status, said = await whoami(signed(role=None, roles=["billing", "other"]), **settings)
    assert (status, said["rules"], said["role"]) == (200, ["push,pop billing.*"], "billing")


@pytest.mark.parametrize("text", ["admin = []", "a = 1", 'a = ["eat *"]', "a = ", "a = [1]"])
def test_roles_file_that_is_not_valid_is_an_error_at_start(text: str, tmp_path: Path) -> None:
    from lockstep.server.auth.authentication import _roles

    (tmp_path / "roles.toml").write_text(text)
    with pytest.raises(InvalidOption):
        _roles(str(tmp_path / "roles.toml"))


@pytest.mark.parametrize(
    "settings",
    [
        {"auth_jwt_secret": "short"},
        {"auth_jwt_secret": "-----BEGIN PUBLIC KEY----- and more than that"},
        {"auth_jwt_public_key": "/nowhere"},
        {"auth_jwks": "/nowhere"},
        {"auth_jwks": "http://127.0.0.1/set"},
        {"auth_jwks": "https://127.0.0.1/set", "auth_jwks_ca_file": "/nowhere"},
    ],
)
def test_settings_that_cannot_work_are_errors_at_start(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidOption):
        TokenKeys(Config(**settings))


def test_weak_or_unknown_keys_are_refused(tmp_path: Path) -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    other = ec.generate_private_key(ec.SECP384R1())
    for number, key in enumerate((weak, other)):
        path = tmp_path / f"{number}.pem"
        path.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        with pytest.raises(InvalidOption):
            TokenKeys(Config(auth_jwt_public_key=str(path)))
    (tmp_path / "set.json").write_text(json.dumps({"keys": [jwk("RS256", weak), {"kty": "oct", "k": "AAAA"}]}))
    with pytest.raises(InvalidOption):
        TokenKeys(Config(auth_jwks=str(tmp_path / "set.json")))


class Issuer:
    """What an address answers."""

    def __init__(self, *keys: dict[str, str]) -> None:
        self.keys = list(keys)
        self.asked = 0
        self.down = False

    async def download(self, url: str, tls: ssl.SSLContext | None) -> bytes:
        assert url == "https://issuer.example/set"
        assert tls is not None
        self.asked += 1
        if self.down:
            raise OSError("the issuer is away")
        return json.dumps({"keys": self.keys}).encode()


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch) -> Issuer:
    made = Issuer(jwk("RS256", kid="old"))
    monkeypatch.setattr(key_sets, "_download", made.download)
    return made


async def test_key_set_is_fetched_once_and_again_for_a_new_key(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_sets, "_ASK_AGAIN_SECONDS", -1.0)
    async with asking(auth_jwks="https://issuer.example/set") as ask:
        old, new = signed(RSA_KEY, "RS256", {"kid": "old"}), signed(EC_KEY, "ES256", {"kid": "new"})
        for _ in range(3):
            assert (await ask("GET", "/api/v1/whoami", token=old)).status == 200
        assert issuer.asked == 1
        assert (await ask("GET", "/api/v1/whoami", token=new)).status == 401
        issuer.keys = [jwk("ES256", kid="new")]
        assert (await ask("GET", "/api/v1/whoami", token=new)).status == 200
        assert (await ask("GET", "/api/v1/whoami", token=old)).status == 401, "its key was taken out of the set"


async def test_unknown_keys_do_not_make_the_server_ask_all_the_time(issuer: Issuer) -> None:
    async with asking(auth_jwks="https://issuer.example/set") as ask:
        for number in range(5):
            token = signed(RSA_KEY, "RS256", {"kid": f"guess-{number}"})
            assert (await ask("GET", "/api/v1/whoami", token=token)).status == 401
        assert issuer.asked == 1


async def test_key_set_is_used_while_its_issuer_is_away_and_not_for_ever(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_sets, "_ASK_AGAIN_SECONDS", -1.0)
    async with asking(auth_jwks="https://issuer.example/set") as ask:
        token = signed(RSA_KEY, "RS256", {"kid": "old"})
        assert (await ask("GET", "/api/v1/whoami", token=token)).status == 200
        issuer.down = True
        keys = ask.node.guards.authentication._tokens
        await keys.renewed()
        assert (await ask("GET", "/api/v1/whoami", token=token)).status == 200
        assert keys._fetched_at is not None
        keys._fetched_at -= 86_401
        assert list(keys.known()) == []
