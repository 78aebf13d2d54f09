"""The encryption library's serialised objects, made and taken apart here, and files in memory for them.

The binding loads and saves through a path only: that of an anonymous file in memory, in ``/proc/self/fd``.
Going in, only an object's words are foreign, and they were checked; every other byte is made here, without
compression. Coming out, every other byte must be the one expected.

Source: Microsoft SEAL 4: serialization.h (header), ciphertext.cpp, plaintext.cpp, dynarray.h (members).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.bfv import SEED_BYTES
from secfed.crypto.encrypted.bfv_packing import Words
from secfed.errors import ConfigError

_MAGIC = 0xA15E
_HEADER = struct.Struct("<HBBBBHQ")  # magic, header size, major, minor, compression, reserved, total size
_COMPRESSION_NONE, _COMPRESSION_ZSTD = 0, 2
_PRNG_BLAKE2XB = b"\x01"
_PLAIN_MEMBERS = 32 + 8 + 8  # identity of the parameters, number of coefficients, scale


class MemoryFile:
    """An anonymous file in memory, with a path for a library that insists on one.

    ``ConfigError``: the operating system has no such files.
    """

    def __init__(self) -> None:
        if not (hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")):
            raise ConfigError(
                "encrypted protection needs files in memory (memfd_create and /proc)",
                remedy="run it on Linux with /proc mounted, or use protection.name = 'masked'",
            )
        self._descriptor = os.memfd_create("secfed")
        self.path = f"/proc/self/fd/{self._descriptor}"

    def put(self, *parts: Buffer) -> str:
        """Replace the contents; gives the path to load from."""
        size = os.pwritev(self._descriptor, parts, 0)
        if size != sum(memoryview(part).nbytes for part in parts):
            raise OSError("a file in memory could not be written; is memory exhausted?")
        os.ftruncate(self._descriptor, size)
        return self.path

    def take(self) -> bytes:
        """The whole contents."""
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


@dataclass(frozen=True)
class ObjectFormat:
    """The serialised form of every kind of object under one context."""

    version: tuple[int, int]  # major and minor version of the library, as its headers carry it
    data_id: bytes  # the context's identity for ciphertexts, 32 bytes
    key_id: bytes  # its identity for keys, 32 bytes
    size: int  # n, coefficients per polynomial
    key_moduli: int  # number of primes a key is stored under
    transformed: bool  # whether ciphertexts are in transformed form (CKKS)
    scale: float  # of ciphertexts; 1 under BFV

    # Going in: parts of an object, for MemoryFile.put.

    def plaintext(self, coefficients: NDArray[Any]) -> Iterator[Buffer]:
        """[n] coefficients below the plaintext modulus."""
        return self._object(bytes(32) + struct.pack("<Qd", coefficients.size, 1.0), coefficients)

    def ciphertext(self, words: Words) -> Iterator[Buffer]:
        """[2, n] words below q."""
        return self._object(self._ciphertext_members(), words)

    def key(self, words: Words, *, secret: bool) -> Iterator[Buffer]:
        """[polynomials, moduli, n] words, each below its modulus."""
        return self._object(self._key_members(secret=secret), words)

    # Coming out: the words of an object that the library saved.

    def take_plaintext(self, data: bytes) -> Words:
        """Up to n coefficients; the library leaves out zeros at the end."""
        start = _PLAIN_MEMBERS + len(self._array_header(0))
        body = self._body(data, start + 8 * self.size)
        count = (len(body) - start) // 8
        if len(body) < start or body[_PLAIN_MEMBERS:start] != self._array_header(count):
            raise _unexpected("plaintext")
        return np.frombuffer(body, "<u8", count, offset=start)

    def take_ciphertext(self, data: bytes) -> Words:
        """[2 n] words."""
        tail = self._tail(data, self._ciphertext_members(), 2 * self.size)
        return np.frombuffer(tail, "<u8")

    def take_seeded(self, data: bytes) -> tuple[Words, bytes]:
        """The first polynomial, [n] words, and the seed of the second."""
        words_bytes = 8 * self.size
        seed_header = self._header(_HEADER.size + 1 + SEED_BYTES) + _PRNG_BLAKE2XB
        extra = len(seed_header) + SEED_BYTES
        tail = self._tail(data, self._ciphertext_members(), self.size, extra)
        if tail[words_bytes : words_bytes + len(seed_header)] != seed_header:
            raise _unexpected("seed")
        return np.frombuffer(tail, "<u8", self.size), bytes(tail[-SEED_BYTES:])

    def take_key(self, data: bytes, *, secret: bool) -> Words:
        """[polynomials, moduli, n] words."""
        polynomials = 1 if secret else 2
        tail = self._tail(data, self._key_members(secret=secret), polynomials * self.key_moduli * self.size)
        return np.frombuffer(tail, "<u8").reshape(polynomials, self.key_moduli, self.size)

    def _ciphertext_members(self) -> bytes:
        return self.data_id + self._polynomials(1, self.scale, transformed=self.transformed)

    def _key_members(self, *, secret: bool) -> bytes:
        if secret:  # saved as a plaintext
            return self.key_id + struct.pack("<Qd", self.key_moduli * self.size, 1.0)
        return self.key_id + self._polynomials(self.key_moduli, 1.0, transformed=True)

    def _polynomials(self, moduli: int, scale: float, *, transformed: bool) -> bytes:
        """Members of two polynomials: form, count, size, moduli, scale, correction factor."""
        return struct.pack("<?QQQdQ", transformed, 2, self.size, moduli, scale, 1)

    def _header(self, total: int) -> bytes:
        return _HEADER.pack(_MAGIC, _HEADER.size, *self.version, _COMPRESSION_NONE, 0, total)

    def _array_header(self, count: int) -> bytes:
        return self._header(_HEADER.size + 8 + 8 * count) + count.to_bytes(8, "little")

    def _object(self, members: bytes, words: NDArray[Any]) -> Iterator[Buffer]:
        array = self._array_header(words.size)
        yield self._header(_HEADER.size + len(members) + len(array) + 8 * words.size)
        yield members
        yield array
        yield np.ascontiguousarray(words, "<u8").data.cast("B")

    def _tail(self, data: bytes, members: bytes, words: int, extra: int = 0) -> memoryview:
        """What follows the members and the array header; both must be exactly as expected."""
        prefix = members + self._array_header(words)
        size = len(prefix) + 8 * words + extra
        body = self._body(data, size)
        if len(body) != size or not body.startswith(prefix):
            raise _unexpected("object")
        return memoryview(body)[len(prefix) :]

    def _body(self, data: bytes, cap_bytes: int) -> bytes:
        """A saved object without its header and compression."""
        magic, header_size, major, minor, compression, _, total = _HEADER.unpack_from(data)
        expected = (_MAGIC, _HEADER.size, self.version, len(data))
        if (magic, header_size, (major, minor), total) != expected:
            raise _unexpected("header")
        if compression == _COMPRESSION_NONE:
            return data[_HEADER.size :]
        if compression != _COMPRESSION_ZSTD:
            raise _unexpected("compression")
        return zstandard.ZstdDecompressor().decompress(data[_HEADER.size :], max_output_size=cap_bytes)


def _unexpected(what: str) -> ConfigError:
    return ConfigError(
        f"this TenSEAL writes objects that secfed does not know ({what})",
        remedy="install the TenSEAL version that secfed's constraints name",
    )
