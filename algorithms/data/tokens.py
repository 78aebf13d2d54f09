"""Reports to token ids, without learning a vocabulary from any record: it would let out one patient's words.

Every report becomes one row of the same length: a first token that every report has (:data:`CLS`), then
its words, cut at the end if there are too many, then padding (:data:`PAD`).
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch

from secfed.algorithms.framework.unfit import unfit
from secfed.errors import ConfigError, DataError, installing

PAD: Final = 0
CLS: Final = 1
UNKNOWN: Final = 2
RESERVED: Final = 3
"""Ids below this are not words."""

_HASH_KEY: Final = b"secfed/v1 words of reports"  # public: it separates uses of the hash, and hides nothing
_MOST_WORDS: Final = 1_000_000

# Letters and digits of all scripts below the surrogates, without general punctuation and symbols. Written
# out, because what a regular expression calls a letter depends on the Unicode tables of the Python version.
_WORD: Final = re.compile("[0-9a-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u1fff\u2c00-\u2dff\u3040-\ud7ff]+")


class Tokenizer(ABC):
    """Texts to rows of token ids."""

    def __init__(self, length: int, vocabulary: int) -> None:
        self.length = length  # tokens per row, padding included
        self.vocabulary = vocabulary  # ids are below this

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """One row per text: [n, length] int64, padding (0) at the end only, never empty."""


class _WordByWord(Tokenizer):
    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """See :meth:`Tokenizer.encode`."""
        rows = torch.zeros(len(texts), self.length, dtype=torch.int64)
        for at, text in enumerate(texts):
            ids = [CLS, *map(self._id, words_of(text)[: self.length - 1])]
            rows[at, : len(ids)] = torch.tensor(ids)
        return rows

    @abstractmethod
    def _id(self, word: str) -> int: ...


def words_of(text: str) -> list[str]:
    """The words of a text: compatibility forms and upper and lower case made equal, punctuation left out.

    The same on every machine and for ever: Unicode Standard Annex 15 (NFKC); Encoding Stability Policies.
    """
    return _WORD.findall(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()))


class WordTokenizer(_WordByWord):
    """Words of a fixed, public list; a word that is not on it becomes :data:`UNKNOWN`.

    The list is in the order of the ids; each word once, written as :func:`words_of` gives it.
    """

    def __init__(self, words: Iterable[str], length: int) -> None:
        self._ids = {word: number for number, word in enumerate(words, start=RESERVED)}
        super().__init__(length, RESERVED + len(self._ids))

    def _id(self, word: str) -> int:
        return self._ids.get(word, UNKNOWN)


class HashTokenizer(_WordByWord):
    """Every word goes into a bucket by a public hash, the same everywhere; it sees no record.

    Different words can share a bucket: of 2000 words in 4096 buckets, about four in ten do.

    Source: Weinberger, Dasgupta, Langford, Smola, Attenberg, "Feature hashing for large scale multitask
        learning", ICML 2009; BLAKE2 in keyed mode, RFC 7693.
    """

    def __init__(self, buckets: int, length: int) -> None:
        super().__init__(length, RESERVED + buckets)
        self._buckets = buckets

    def _id(self, word: str) -> int:
        return RESERVED + _hash(word) % self._buckets


class FolderTokenizer(Tokenizer):
    """A published tokenizer in Hugging Face format, read from a local folder; nothing is downloaded."""

    def __init__(self, folder: Path, length: int) -> None:
        if not folder.is_dir():
            raise ConfigError(
                f"data.tokenizer_folder: {folder} is not a folder",
                remedy="name the folder with tokenizer.json, relative to the study file",
            )
        try:
            from transformers import AutoTokenizer  # slow, and part of an extra
        except ImportError:
            raise ConfigError(
                "data.tokenizer_folder: needs the library transformers",
                remedy=installing("vision-language"),
            ) from None
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
        except Exception:  # noqa: BLE001  the library raises this very class for a damaged file
            message = f"data.tokenizer_folder: {folder} holds no tokenizer that can be read"
            raise ConfigError(message, remedy="save it there with save_pretrained of transformers") from None
        if self._tokenizer.pad_token_id != PAD:
            message = f"data.tokenizer_folder: the padding of {folder.name} is not token {PAD}"
            raise ConfigError(message, remedy="use a tokenizer of the BERT family")
        super().__init__(length, len(self._tokenizer))

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """See :meth:`Tokenizer.encode`."""
        if not texts:
            return torch.zeros(0, self.length, dtype=torch.int64)
        encoded = self._tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=self.length, padding_side="right"
        )
        rows = torch.tensor(encoded["input_ids"], dtype=torch.int64)
        if not bool((rows[:, 0] != PAD).all()):
            unfit(
                DataError(
                    "a report becomes an empty row of tokens",
                    remedy="leave records without a report out, or use a tokenizer with a [CLS] token",
                )
            )
            rows = readable_tokens(rows, self.vocabulary)
        return rows


def read_words(path: Path) -> tuple[str, ...]:
    """A list of words from a text file, one on each line; empty lines are left out.

    Errors name file and line, never what stands there: the key may name the wrong file.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        message = f"data.words_file: cannot read {path} ({error.strerror})"
        raise ConfigError(message, remedy="check path and rights") from None
    except UnicodeDecodeError:
        raise ConfigError(f"data.words_file: {path.name} is not UTF-8", remedy="save it as UTF-8") from None
    words = tuple(line.strip() for line in lines if line.strip())
    if not 0 < len(words) <= _MOST_WORDS:
        message = f"data.words_file: {len(words)} words in {path.name}"
        raise ConfigError(message, remedy=f"give 1 to {_MOST_WORDS}")
    listed: set[str] = set()
    for number, line in enumerate(lines, start=1):
        word = line.strip()
        if word and (words_of(word) != [word] or word in listed):
            raise ConfigError(
                f"data.words_file: {path.name}, line {number} is there twice, or not one word in lower case",
                remedy="write every word once, in lower case and without punctuation",
            )
        listed.add(word)
    return words


def readable_tokens(tokens: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Rows of tokens ([n, length]) as a model takes them: known ones, at least one, padding at the end."""
    known = torch.where((tokens >= 0) & (tokens < vocabulary), tokens, UNKNOWN)
    inside = (known != PAD).flip(1).cummax(1).values.flip(1)  # a word stands here, or follows
    inside[:, 0] = True
    return torch.where(inside & (known == PAD), UNKNOWN, known)


@lru_cache(maxsize=65536)
def _hash(word: str) -> int:
    digest = hashlib.blake2b(word.encode(), key=_HASH_KEY, digest_size=8).digest()
    return int.from_bytes(digest, "big")
