"""The demo's text: the language reference that every CPython carries in `pydoc_data`.

It is real English prose with code in between, about 400 KB, and needs no download. Everything here is
deterministic: the same Python gives the same bytes, shards and held-out set in every process, so the learners
need not be sent any data.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

BLOCK_BYTES = 1024
"""Text is dealt out in blocks of whole paragraphs of about this size."""

HELD_OUT_EVERY = 8
"""One block in this many is never trained on."""

_ORNAMENTS = "*=-~^\"'. "
_PUNCTUATION = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "..."})


@dataclass(frozen=True)
class Corpus:
    """`held_out` and each shard are u8 arrays of ASCII text. No paragraph is in two of them."""

    held_out: Bytes
    shards: tuple[Bytes, ...]

    @property
    def full(self) -> Bytes:
        """All text that may be trained on."""
        return np.concatenate(self.shards)


def clean(text: str) -> str:
    """ASCII text without the rows of `***` or `===` under headings and without trailing blanks."""
    ascii_text = (
        unicodedata.normalize("NFKD", text.translate(_PUNCTUATION)).encode("ascii", "ignore").decode()
    )
    lines = (line.rstrip() for line in ascii_text.splitlines())
    return "\n".join(line for line in lines if not line or line.strip(_ORNAMENTS))


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a cleaned text, without empty ones."""
    return [part.strip("\n") for part in clean(text).split("\n\n") if part.strip()]


def split(topics: Mapping[str, str], shards: int) -> Corpus:
    """Deals whole topics to `shards` shards of about equal size, then holds out every eighth block of each
    shard.

    Topics quote each other at length (`specialnames` contains four others), so a paragraph counts once, where
    it first appears. Without that the held-out text would be in the training text too.

    Raises ValueError when there is too little text for `shards` shards.
    """
    seen: set[str] = set()
    texts: list[list[str]] = []
    for name in sorted(topics):
        fresh = [part for part in dict.fromkeys(paragraphs(topics[name])) if part not in seen]
        seen.update(fresh)
        texts.append(fresh)
    texts.sort(key=lambda parts: -sum(map(len, parts)))

    dealt: list[list[str]] = [[] for _ in range(shards)]
    sizes = [0] * shards
    for parts in texts:
        smallest = sizes.index(min(sizes))
        dealt[smallest] += parts
        sizes[smallest] += sum(map(len, parts))

    held_out: list[str] = []
    kept: list[list[str]] = []
    for parts in dealt:
        blocks = _blocks(parts)
        held_out += [block for index, block in enumerate(blocks) if _is_held_out(index)]
        kept.append([block for index, block in enumerate(blocks) if not _is_held_out(index)])
    if not held_out or not all(kept):
        raise ValueError(f"too little text for {shards} shards: {sum(sizes)} bytes")
    return Corpus(_encode(held_out), tuple(_encode(blocks) for blocks in kept))


def load_corpus(shards: int) -> Corpus:
    """The corpus of this Python, in `shards` shards."""
    from pydoc_data.topics import topics

    return split(topics, shards)


def _is_held_out(index: int) -> bool:
    return index % HELD_OUT_EVERY == HELD_OUT_EVERY // 2


def _blocks(parts: Iterable[str]) -> list[str]:
    blocks: list[str] = []
    current: list[str] = []
    size = 0
    for part in parts:
        current.append(part)
        size += len(part)
        if size >= BLOCK_BYTES:
            blocks.append("\n\n".join(current))
            current, size = [], 0
    if current:
        blocks.append("\n\n".join(current))
    return blocks


def _encode(blocks: Iterable[str]) -> Bytes:
    return np.frombuffer("\n\n".join(blocks).encode("ascii"), dtype=np.uint8)
