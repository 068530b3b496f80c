"""The journal beside a resume record: what a learner reads that died at any moment of saving and pushing."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from yeto_learner.core.boundary import RecordedFragment
from yeto_learner.journal import MAX_RECORDS, PushJournal, journal_of, pushed_since
from yeto_learner.record import ResumeRecord, read_record, with_later_pushes, write_record

UNPUSHED = RecordedFragment(5, 2, 20, False, None)
PUSHED = RecordedFragment(6, 2, 20, True, 7)
ALL = {0, 1, 3}  # fragment 2 was pushed before, fragment 4 has no anchor


def a_record(identity: str, steps: int = 12) -> ResumeRecord:
    return ResumeRecord(steps, 0, 7, (UNPUSHED, UNPUSHED, PUSHED, UNPUSHED, None), None, {}, identity)


def save(journal: PushJournal, path: Path, record: ResumeRecord) -> None:
    assert record.identity is not None
    with journal.saving(path, record.identity, record.pushed_from):
        write_record(path, record)


def unpushed(path: Path) -> set[int]:
    """What a learner that comes back now may add to a newer global."""
    return with_later_pushes(read_record(path))[0].unpushed


@pytest.fixture
def journal() -> Iterator[PushJournal]:
    made = PushJournal()
    yield made
    made.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sync.npz"


def test_a_push_after_the_save_is_known_to_who_comes_back(journal: PushJournal, path: Path) -> None:
    save(journal, path, a_record("a"))
    assert unpushed(path) == ALL
    journal.note(journal.records, 1, 5)
    record, trusted = with_later_pushes(read_record(path))
    assert record.unpushed == ALL - {1} and trusted
    assert record.fragments[1] == replace(UNPUSHED, pushed=True, pushed_from=5)


def test_each_fragment_is_written_once(journal: PushJournal, path: Path) -> None:
    save(journal, path, a_record("a"))
    for fragment, base in (
        (1, 5),
        (1, 6),
        (2, 6),
        (4, 5),
        (1, 5),
    ):  # 2 is known to be pushed, 4 has no anchor
        journal.note(journal.records, fragment, base)
    assert len(journal_of(path).read_bytes().splitlines()) == 2


def test_the_lowest_version_that_was_pushed_from_counts(journal: PushJournal, path: Path) -> None:
    """A syncer may come back older than the record, and take the progress there."""
    save(journal, path, a_record("a"))
    for base in (7, 3, 4):
        journal.note(journal.records, 0, base)
        journal.note(journal.records, 2, base)
    record, _ = with_later_pushes(read_record(path))
    for fragment in (0, 2):
        known = record.fragments[fragment]
        assert known is not None and known.pushed and known.pushed_from == 3
    assert len(journal_of(path).read_bytes().splitlines()) == 1 + 2 + 1


def test_a_later_life_goes_on_with_the_journal_of_its_record(path: Path) -> None:
    for fragment, known in ((0, {1, 3}), (3, {1})):
        life = PushJournal()
        if fragment == 0:
            save(life, path, a_record("a"))
        else:
            life.follow(path, "a", with_later_pushes(read_record(path))[0].pushed_from)
        life.note(life.records, fragment, 5)
        life.close()
        assert unpushed(path) == known


def test_a_new_record_begins_with_nothing_pushed(journal: PushJournal, path: Path) -> None:
    save(journal, path, a_record("a"))
    journal.note(journal.records, 0, 5)
    save(journal, path, a_record("b"))
    assert unpushed(path) == ALL
    assert len(journal_of(path).read_bytes().splitlines()) == 1  # it does not grow from save to save


def test_a_push_from_before_a_save_is_told_to_the_old_record_alone(journal: PushJournal, path: Path) -> None:
    """The sender has it while the new record is saved, which knows of it by itself."""
    save(journal, path, a_record("a"))
    waiting = journal.records
    other = path.with_name("other.npz")
    save(journal, other, a_record("b"))
    journal.note(waiting, 0, 5)
    assert unpushed(path) == ALL - {0} and unpushed(other) == ALL
    journal.note(journal.records, 1, 5)
    assert unpushed(path) == ALL - {0, 1} and unpushed(other) == ALL - {1}  # one may come back from either


def test_a_push_from_before_a_save_at_the_same_path_does_not_spoil_it(
    journal: PushJournal, path: Path
) -> None:
    save(journal, path, a_record("a"))
    waiting = journal.records
    save(journal, path, a_record("b"))
    journal.note(waiting, 0, 5)
    assert unpushed(path) == ALL


class Death(BaseException):
    """The process ends here."""


Step = Callable[..., Any]


def dying(calls: list[str], at: int, name: str, real: Step) -> Step:
    """Does what `real` does, or dies before it."""

    def step(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) == at:
            raise Death
        return real(*arguments, **options)

    return step


def save_and_die(monkeypatch: pytest.MonkeyPatch, at: int, body: Callable[[], None]) -> list[str]:
    """Run `body` and die before the system call number `at` that changes a file, or makes it durable."""
    calls: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", dying(calls, at, "write", os.write))
        patch.setattr(os, "fsync", dying(calls, at, "fsync", os.fsync))
        patch.setattr(Path, "replace", dying(calls, at, "replace", Path.replace))
        patch.setattr(os, "fstat", dying(calls, at, "fstat", os.fstat))
        try:
            body()
        except Death:
            pass
        else:
            assert len(calls) < at
    return calls


@pytest.mark.parametrize("at", range(1, 40))
def test_at_each_moment_of_a_save_the_record_on_disk_knows_its_pushes(
    path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Fragment 0 was pushed after the old save; the push of fragment 1 was handed out before the new one and
    is sent by the time that the process dies."""
    life = PushJournal()
    save(life, path, a_record("a"))
    life.note(life.records, 0, 5)
    new = ResumeRecord(13, 0, 7, (PUSHED, replace(UNPUSHED, pushed=True), UNPUSHED), None, {}, "b")
    waiting = life.records
    calls = save_and_die(monkeypatch, at, lambda: save(life, path, new))
    life.note(waiting, 1, 5)
    life.close()
    record, trusted = with_later_pushes(read_record(path))
    if record.identity == "a":
        assert record.unpushed <= {3} and (record.unpushed == {3} or not trusted)
    else:
        assert record.unpushed == {2} or (record.unpushed == set() and not trusted)
    if len(calls) < at:
        assert (record.identity, record.unpushed, trusted) == ("b", {2}, True)


@pytest.mark.parametrize("at", range(1, 40))
def test_a_save_that_failed_late_is_told_of_pushes_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The learner lives on; which of the two records is on disk does not matter."""
    life = PushJournal()
    save(life, path, a_record("a"))
    save_and_die(monkeypatch, at, lambda: save(life, path, a_record("b")))
    life.note(life.records, 3, 5)
    life.close()
    assert 3 not in unpushed(path)


@pytest.mark.parametrize("at", range(1, 6))
def test_a_death_while_a_push_is_noted_leaves_a_record_that_can_be_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    life = PushJournal()
    save(life, path, a_record("a"))
    save_and_die(monkeypatch, at, lambda: life.note(life.records, 0, 5))
    assert unpushed(path) in (ALL, ALL - {0})  # it is not sent before `note` returns
    life.close()


@pytest.mark.parametrize("keep", range(1, 50, 7))
def test_a_line_that_was_half_written_counts_as_a_push_of_everything(
    journal: PushJournal, path: Path, keep: int
) -> None:
    save(journal, path, a_record("a" * 32))
    before = journal_of(path).read_bytes()
    journal.note(journal.records, 0, 5)
    line = journal_of(path).read_bytes()[len(before) :]
    assert keep < len(line) - 1
    journal_of(path).write_bytes(before + line[:keep])
    assert unpushed(path) == set()
    journal.note(journal.records, 1, 5)  # what comes behind a torn line begins a line of its own
    assert b"\n" + b"a" * 32 + b" pushed 1 5 " in journal_of(path).read_bytes()
    save(journal, path, a_record("b"))
    assert unpushed(path) == ALL  # the next save makes it good


@pytest.mark.parametrize("position", range(0, 52, 3))
def test_a_flipped_bit_never_hides_a_push(journal: PushJournal, path: Path, position: int) -> None:
    save(journal, path, a_record("a" * 32))
    begun = len(journal_of(path).read_bytes())
    journal.note(journal.records, 0, 5)
    data = bytearray(journal_of(path).read_bytes())
    data[begun + min(position, len(data) - begun - 1)] ^= 1
    journal_of(path).write_bytes(data)
    assert unpushed(path) == set()


def test_without_its_journal_a_record_counts_as_pushed(journal: PushJournal, path: Path) -> None:
    save(journal, path, a_record("a"))
    journal_of(path).unlink()
    assert with_later_pushes(read_record(path))[1] is False and unpushed(path) == set()
    journal.note(journal.records, 0, 5)  # nothing is left that would have to be told
    assert not journal_of(path).exists()


def test_a_copy_counts_as_pushed(journal: PushJournal, path: Path, tmp_path: Path) -> None:
    save(journal, path, a_record("a"))
    copy = tmp_path / "copy.npz"
    shutil.copy(path, copy)
    shutil.copy(journal_of(path), journal_of(copy))
    assert unpushed(copy) == set() and unpushed(path) == ALL


def test_a_record_that_was_put_over_another_one_counts_as_pushed(
    journal: PushJournal, path: Path, tmp_path: Path
) -> None:
    save(journal, path, a_record("a"))
    write_record(path, a_record("b"))
    assert unpushed(path) == set()


def test_a_folder_that_is_renamed_takes_the_journal_with_it(journal: PushJournal, tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    save(journal, tmp_path / "part" / "sync.npz", a_record("a"))
    (tmp_path / "part").rename(tmp_path / "whole")
    (tmp_path / "part").mkdir()
    save(journal, tmp_path / "part" / "sync.npz", a_record("b"))
    journal.note(journal.records, 3, 5)
    assert unpushed(tmp_path / "whole" / "sync.npz") == ALL - {3}
    assert unpushed(tmp_path / "part" / "sync.npz") == ALL - {3}


def test_records_without_an_identity_are_as_they_say(path: Path) -> None:
    write_record(path, replace(a_record("a"), identity=None))
    record, trusted = with_later_pushes(read_record(path))
    assert record.unpushed == ALL and trusted
    assert [each.name for each in path.parent.iterdir()] == ["sync.npz"]


def test_a_push_that_cannot_be_noted_is_an_error_that_says_what_to_do(
    journal: PushJournal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(journal, path, a_record("a"))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match=r"sync\.npz\.pushed: .*nothing of it was sent.*Make room"):
            journal.note(journal.records, 0, 5)
    journal.note(journal.records, 0, 5)  # tried again, not taken for done
    assert unpushed(path) == ALL - {0}


def test_a_journal_that_cannot_be_written_is_refused_at_the_start(journal: PushJournal, path: Path) -> None:
    journal_of(path).mkdir()
    with pytest.raises(OSError, match=r"sync\.npz\.pushed: cannot be written .*Make it writable"):
        journal.follow(path, "a", {0: None})


def test_records_that_wait_for_ever_are_let_go_as_pushed(journal: PushJournal, tmp_path: Path) -> None:
    """During a long outage nothing is pushed, and every save may get a name of its own."""
    paths = [tmp_path / f"{number}.npz" for number in range(MAX_RECORDS + 3)]
    for path in paths:
        save(journal, path, a_record(path.stem))
    assert len(journal.records) == MAX_RECORDS
    journal.note(journal.records, 0, 5)
    assert [unpushed(path) for path in paths] == [set()] * 3 + [ALL - {0}] * MAX_RECORDS


def test_records_are_let_go_when_they_are_removed(journal: PushJournal, tmp_path: Path) -> None:
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        save(journal, folder / "sync.npz", a_record(str(number)))
        shutil.rmtree(folder)
    assert len(journal.records) <= 1


def test_of_a_missing_journal_nothing_is_known(path: Path) -> None:
    assert pushed_since(path, "a") is None
