"""The derivation of the next key."""

from __future__ import annotations

import pytest

from bridgehead import rotation

KEY, SALT = bytes(range(32)), bytes(32)


def test_hkdf_gives_what_rfc_5869_says() -> None:
    """Test case 1 of its appendix A."""
    okm = rotation.hkdf_sha256(bytes([0x0B] * 22), bytes(range(13)), bytes(range(0xF0, 0xFA)), 42)
    assert okm.hex() == ("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865")


def test_the_next_key_depends_on_everything_that_goes_into_it() -> None:
    same = rotation.successor(KEY, SALT, "k-1", "k-2")
    others = {
        rotation.successor(bytes(32), SALT, "k-1", "k-2"),
        rotation.successor(KEY, bytes(range(32)), "k-1", "k-2"),
        rotation.successor(KEY, SALT, "k-0", "k-2"),
        rotation.successor(KEY, SALT, "k-1", "k-3"),
    }
    assert same == rotation.successor(KEY, SALT, "k-1", "k-2") and len(same) == 32
    assert len(others) == 4 and not others & {same, KEY}


@pytest.mark.parametrize(("key", "salt"), [(b"short", SALT), (KEY, b"")])
def test_a_short_key_or_salt_is_refused(key: bytes, salt: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        rotation.successor(key, salt, "k-1", "k-2")
