"""Sealing: what opens, what does not, and why."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core import codec as codecs
from lockstep.core import layouts
from lockstep.core.codec import NO_KEYS, SEALED, Codec, unseal
from lockstep.core.sealing import (
    Keyring,
    cron_binding,
    key_id,
    key_id_of,
    operation_binding,
    segment_binding,
    waiting_binding,
)
from lockstep.errors import CorruptSegment, EncryptionUnavailable, SealBroken

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))
KEYS = Keyring((KEY,))
ONE = UUID(int=1)
TWO = UUID(int=2)


def sealed(layout: bytes = b"the same" * 10, *, keys: Keyring = KEYS, binding: bytes = b"here") -> bytes:
    return codecs.seal(layout, keys=keys, binding=binding)[1]


def opened(body: bytes, *, keys: Keyring = KEYS, binding: bytes = b"here", codec: int = SEALED) -> bytes:
    return unseal(codec, body, keys=keys, binding=binding)


def flipped(body: bytes, bit: int) -> bytes:
    changed = bytearray(body)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_sealed_body_says_nothing() -> None:
    body = sealed()
    assert b"the same" not in body
    with pytest.raises(CorruptSegment):
        opened(body, codec=Codec.PACKED)


def test_same_layout_is_never_sealed_to_the_same_body() -> None:
    assert len({sealed() for _ in range(50)}) == 50
    assert len({sealed()[9:21] for _ in range(50)}) == 50


def test_body_names_its_key_and_not_the_key_itself() -> None:
    assert key_id_of(sealed()) == key_id(KEY) == KEYS.active_id
    assert len(key_id(KEY)) == 16
    assert KEY.hex().find(key_id(KEY)) == -1
    assert KEY.hex() not in repr(KEYS)
    assert repr(KEY) not in repr(KEYS)


def test_every_changed_bit_is_noticed() -> None:
    body = sealed(b"x")
    for bit in range(8 * len(body)):
        with pytest.raises((SealBroken, EncryptionUnavailable)):
            opened(flipped(body, bit))


@pytest.mark.parametrize("length", [0, 1, 9, 20, 21, 36, 37, -1])
def test_body_that_is_cut_short_is_refused(length: int) -> None:
    with pytest.raises(SealBroken):
        opened(sealed()[:length])


@pytest.mark.parametrize("codec", [Codec.PACKED, Codec.PACKED | Codec.ENCRYPTED, SEALED | 8, Codec.BOUND])
def test_body_under_another_codec_is_refused(codec: int) -> None:
    with pytest.raises((CorruptSegment, EncryptionUnavailable)):
        opened(sealed(), codec=codec)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (NO_KEYS, f"{key_id(KEY)}, but no encryption key is configured"),
        (Keyring((OTHER_KEY,)), f"not among those configured: {key_id(OTHER_KEY)}"),
    ],
)
def test_missing_key_is_named(keys: Keyring, told: str) -> None:
    with pytest.raises(EncryptionUnavailable, match=told) as caught:
        opened(sealed(), keys=keys)
    assert caught.value.details == {"key_id": key_id(KEY)}
    assert caught.value.status == 500


def test_first_key_seals_and_all_of_them_open() -> None:
    both = Keyring((OTHER_KEY, KEY))
    assert opened(sealed(), keys=both) == b"the same" * 10
    assert key_id_of(sealed(keys=both)) == key_id(OTHER_KEY)
    # The id of another key does not make it another key's.
    with pytest.raises(SealBroken):
        opened(sealed(keys=both)[:1] + sealed()[1:9] + sealed(keys=both)[9:], keys=both)


def test_old_form_opens_with_any_key() -> None:
    import os

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(12)
    body = nonce + AESGCM(KEY).encrypt(nonce, layouts.pack(b"old"), None)
    old = Codec.PACKED | Codec.ENCRYPTED
    assert opened(body, keys=Keyring((OTHER_KEY, KEY)), codec=old) == b"old"
    with pytest.raises(EncryptionUnavailable, match="another key"):
        opened(body, keys=Keyring((OTHER_KEY,)), codec=old)
    with pytest.raises(EncryptionUnavailable, match="no encryption key is configured"):
        opened(body, keys=NO_KEYS, codec=old)
    with pytest.raises(SealBroken, match="cut short"):
        opened(body[:27], codec=old)


BINDINGS: dict[str, bytes] = {
    "segment": segment_binding(ONE, 1, [1, 2], [3, 4]),
    "other segment": segment_binding(TWO, 1, [1, 2], [3, 4]),
    "other queue": segment_binding(ONE, 2, [1, 2], [3, 4]),
    "other partition": segment_binding(ONE, 1, [1, 3], [3, 4]),
    "other order": segment_binding(ONE, 1, [2, 1], [3, 4]),
    "other counts": segment_binding(ONE, 1, [1, 2], [4, 3]),
    "fewer partitions": segment_binding(ONE, 1, [1], [3]),
    "waiting": waiting_binding(1, "p", None),
    "waiting under a key": waiting_binding(1, "p", ""),
    "waiting elsewhere": waiting_binding(2, "p", None),
    "waiting for another": waiting_binding(1, "q", None),
    "cron": cron_binding("c", "q", "p"),
    "cron of another name": cron_binding("cq", "", "p"),
    "operation": operation_binding("push", 1),
    "larger operation": operation_binding("push", 2),
}


def test_what_is_bound_to_one_place_opens_at_no_other() -> None:
    bodies = {name: sealed(binding=binding) for name, binding in BINDINGS.items()}
    for name, body in bodies.items():
        for place, binding in BINDINGS.items():
            if place == name:
                assert opened(body, binding=binding) == b"the same" * 10
            else:
                with pytest.raises(SealBroken):
                    opened(body, binding=binding)


@given(st.tuples(st.text(), st.text(), st.text()), st.tuples(st.text(), st.text(), st.text()))
def test_different_names_bind_differently(one: Any, other: Any) -> None:
    assert (cron_binding(*one) == cron_binding(*other)) == (one == other)
