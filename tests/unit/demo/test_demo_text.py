"""The demo's text: the same everywhere, and nothing held out is trained on."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from yeto_learner.demo.text import HELD_OUT_EVERY, clean, load_corpus, paragraphs, split


def words(count: int, start: int) -> str:
    return " ".join(f"word{start + index}" for index in range(count))


def test_the_corpus_is_plain_ascii_in_shards_of_about_equal_size() -> None:
    corpus = load_corpus(3)
    sizes = [len(shard) for shard in corpus.shards]
    assert len(sizes) == 3
    assert max(sizes) < 1.1 * min(sizes)
    assert sum(sizes) == len(corpus.full) > 200_000
    share = len(corpus.held_out) / (len(corpus.held_out) + sum(sizes))
    assert share == pytest.approx(1 / HELD_OUT_EVERY, abs=0.02)
    for part in (corpus.held_out, *corpus.shards):
        assert part.dtype == np.uint8
        assert part.max() < 128


def test_no_paragraph_is_in_two_parts() -> None:
    corpus = load_corpus(3)
    parts = [bytes(part).decode() for part in (corpus.held_out, *corpus.shards)]
    found = [set(part.split("\n\n")) for part in parts]
    assert all(len(each) > 100 for each in found)
    for index, one in enumerate(found):
        for other in found[index + 1 :]:
            assert not one & other


def test_another_process_gets_the_same_bytes() -> None:
    code = (
        "import hashlib; from yeto_learner.demo.text import load_corpus; c = load_corpus(3);"
        "print(hashlib.sha256(b''.join(map(bytes, (c.held_out, *c.shards)))).hexdigest())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_a_repeated_paragraph_counts_once() -> None:
    shared = words(30, 90_000)
    topics = {
        name: "\n\n".join([shared, *(words(100, 1000 * topic + 100 * part) for part in range(10))])
        for topic, name in enumerate("abcdef")
    }
    corpus = split(topics, 2)
    text = b"".join(map(bytes, (corpus.held_out, *corpus.shards))).decode()
    assert text.count(shared) == 1


def test_cleaning_keeps_prose_and_drops_ornaments() -> None:
    raw = "Heading\n*******\n\n“Quoted” – it’s…   \n\n   code = 1\n   ====\n\ncafé"
    assert clean(raw) == 'Heading\n\n"Quoted" - it\'s...\n\n   code = 1\n\ncafe'
    assert paragraphs("a\n\n\n\nb\n\n  \n") == ["a", "b"]


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ValueError, match="too little text for 3 shards"):
        split({"only": "a short topic"}, 3)
