"""The spool as files: what is written comes back, whatever happens to the files, and no wrong record ever does."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.engine.spool.frames import HEADER_BYTES, MARKER, Frame, RecordContent
from lockstep.engine.spool.spool import Spool
from lockstep.engine.spool.state import SpoolState
from lockstep.errors import SpoolFull, SpoolUnusable
from support.disks import files_of_at_most
from support.fuzz import examples

BYTES_MAX = 1_000_000


def content(number: int, size: int = 20) -> RecordContent:
    return RecordContent(number % 3 + 1, (b"%06d" % number) * (size // 6 + 1))


def append(spool: Spool, *contents: RecordContent) -> int | None:
    return spool.append(contents, only_behind=False)


def read_all(spool: Spool) -> tuple[list[RecordContent], int]:
    """All records from where the spool is drained on, and how many bytes are damaged."""
    found: list[Frame] = []
    damaged, place = 0, spool.place()
    while spool.left(place) > 0:
        stretch = spool.read(place, bytes_max=100)
        assert stretch.start == place < stretch.end
        found += stretch.frames
        damaged += 0 if stretch.frames else stretch.end - stretch.start
        place = stretch.end
    return [RecordContent(frame.messages, frame.body) for frame in found], damaged


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool", bytes_max=BYTES_MAX, file_bytes=200)
    yield spool
    spool.close()


def reopened(spool: Spool) -> Spool:
    """The same object, as a new process would make it."""
    spool.close()
    return reopened_after_close(spool)


def reopened_after_close(spool: Spool) -> Spool:
    again = Spool(spool.directory, bytes_max=spool.bytes_max, file_bytes=200)
    spool.__dict__.update(again.__dict__)
    return spool


def logs(spool: Spool) -> list[Path]:
    return sorted(spool.directory.glob("*.log"))


def test_records_come_back_in_order(spool: Spool) -> None:
    written = [content(number) for number in range(30)]
    for one in written[:10]:
        assert append(spool, one) == 1
    assert append(spool, *written[10:]) == 20
    assert read_all(spool) == (written, 0)
    assert read_all(reopened(spool)) == (written, 0)
    assert spool.counts().messages == sum(one.messages for one in written)


def test_record_larger_than_a_file_and_than_a_read_comes_back(spool: Spool) -> None:
    written = [content(1), content(2, 5_000), content(3)]
    append(spool, *written)
    assert read_all(spool) == (written, 0)


def test_large_log_is_several_files_that_go_as_they_are_drained(spool: Spool) -> None:
    written = [content(number) for number in range(30)]
    for one in written:
        append(spool, one)
    before = len(logs(spool))
    assert before > 3
    stretch = spool.read(spool.place(), bytes_max=500)
    spool.advance(stretch.end, messages=sum(frame.messages for frame in stretch.frames))
    assert len(logs(spool)) < before
    assert read_all(reopened(spool)) == (written[len(stretch.frames) :], 0)


def test_drained_spool_is_empty_and_opens_its_gate(spool: Spool) -> None:
    assert spool.gate[0] == 0
    append(spool, content(1))
    assert spool.gate[0] == 1
    assert reopened(spool).gate[0] == 1
    end = spool.place() + spool.left(spool.place())
    assert spool.advance(end, messages=2)
    assert (spool.gate[0], logs(spool), spool.counts().bytes) == (0, [], 0)
    append(spool, content(2))
    assert spool.place() == end
    assert read_all(spool) == ([content(2)], 0)


def test_record_that_only_goes_behind_others_is_not_written_to_an_empty_spool(spool: Spool) -> None:
    assert spool.append([content(1)], only_behind=True) is None
    assert read_all(spool) == ([], 0)
    append(spool, content(1))
    assert spool.append([content(2)], only_behind=True) == 1


def test_full_spool_takes_what_fits_and_refuses_the_rest(tmp_path: Path) -> None:
    spool = Spool(tmp_path, bytes_max=3 * (HEADER_BYTES + 24))
    assert append(spool, *[content(number) for number in range(5)]) == 3
    with pytest.raises(SpoolFull, match="spool_bytes_max"):
        append(spool, content(9))
    place = spool.read(spool.place(), bytes_max=10).end
    spool.advance(place, messages=1)
    assert append(spool, content(3), content(4)) == 1
    assert read_all(spool) == ([content(number) for number in (1, 2, 3)], 0)
    spool.close()


def test_two_processes_append_to_one_log(spool: Spool) -> None:
    """Of two that have the directory open each sees what the other wrote, also when a file was begun or removed."""
    other = Spool(spool.directory, bytes_max=BYTES_MAX, file_bytes=200)
    written = [content(number) for number in range(40)]
    for number, one in enumerate(written):
        append((spool, other)[number % 2], one)
    assert read_all(other) == (written, 0)
    assert other.advance(spool.place() + spool.left(spool.place()))
    append(spool, content(99))
    assert read_all(other) == ([content(99)], 0)
    other.close()


def test_one_process_at_a_time_drains(spool: Spool) -> None:
    other = Spool(spool.directory, bytes_max=BYTES_MAX)
    assert spool.begin_draining()
    assert spool.begin_draining()
    assert not other.begin_draining()
    spool.end_draining()
    assert other.begin_draining()
    other.close()
    assert spool.begin_draining()


def test_nobody_appends_while_the_log_is_held(spool: Spool) -> None:
    append(spool, content(1))
    outcomes: list[int | None] = []
    spool.hold()
    thread = threading.Thread(target=lambda: outcomes.append(spool.append([content(2)], only_behind=True)))
    thread.start()
    assert spool.advance(spool.place() + spool.left(spool.place()), messages=1)
    assert outcomes == []
    spool.release()
    thread.join()
    assert outcomes == [None]


def test_disk_that_fails_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    failing = False

    def sync(descriptor: int) -> None:
        if failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.fdatasync(descriptor)

    spool = Spool(tmp_path, bytes_max=BYTES_MAX, sync=sync)
    append(spool, content(1))
    failing = True
    with pytest.raises(SpoolUnusable, match="No space left"):
        append(spool, content(2))
    failing = False
    append(spool, content(3))
    assert read_all(spool) == ([content(1), content(3)], 0)
    spool.close()


@pytest.mark.parametrize("room", [0, 1, HEADER_BYTES, HEADER_BYTES + 24, 2 * (HEADER_BYTES + 24) - 1])
def test_full_disk_leaves_nothing_of_what_was_refused(tmp_path: Path, room: int) -> None:
    spool = Spool(tmp_path, bytes_max=BYTES_MAX)
    append(spool, content(1))
    before = logs(spool)[0].read_bytes()
    with files_of_at_most(len(before) + room), pytest.raises(SpoolUnusable, match="cannot be written") as refused:
        append(spool, content(2), content(3))
    assert (refused.value.code, refused.value.status) == ("spool_unusable", 503)
    assert logs(spool)[0].read_bytes() == before
    append(spool, content(4))
    assert read_all(spool) == ([content(1), content(4)], 0)
    spool.close()


def test_page_has_its_place_on_the_disk_before_it_is_mapped(tmp_path: Path) -> None:
    """A write to a mapped page that the disk has no room for is no error: it ends the process."""
    state = SpoolState(tmp_path / "state")
    assert (tmp_path / "state").stat().st_blocks > 0
    state.close()


def test_directory_that_cannot_be_used_costs_no_descriptors(tmp_path: Path) -> None:
    def next_descriptor() -> int:
        descriptor = os.open(os.devnull, os.O_RDONLY)
        os.close(descriptor)
        return descriptor

    before = next_descriptor()
    with files_of_at_most(0), pytest.raises(SpoolUnusable, match="cannot be used"):
        Spool(tmp_path, bytes_max=BYTES_MAX)
    assert next_descriptor() == before


def test_directory_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolUnusable, match="cannot be used"):
        Spool(tmp_path / "file" / "spool", bytes_max=BYTES_MAX)


def test_torn_record_is_cut_off_by_the_next_one_who_appends(spool: Spool, caplog: pytest.LogCaptureFixture) -> None:
    append(spool, content(1))
    with logs(spool)[-1].open("ab") as file:
        file.write(MARKER + b"torn")
    other = Spool(spool.directory, bytes_max=BYTES_MAX)
    append(spool, content(2))
    assert read_all(other) == ([content(1), content(2)], 0)
    assert [(record.action, record.bytes_cut) for record in caplog.records] == [("spool_tail_recovered", 12)]
    other.close()


def test_whole_record_behind_the_known_end_is_kept(spool: Spool) -> None:
    """A process wrote it and died before it could say so; it may even have been acknowledged before a power cut."""
    append(spool, content(1))
    page = bytes((spool.directory / "state").read_bytes())
    append(spool, content(2))
    spool.close()
    (spool.directory / "state").write_bytes(page)
    assert read_all(reopened_after_close(spool)) == ([content(1), content(2)], 0)
    assert spool.counts().messages == 2 + 3


def test_page_that_is_lost_is_made_anew_from_the_files(spool: Spool) -> None:
    written = [content(number) for number in range(20)]
    append(spool, *written[:9])
    append(spool, *written[9:])
    identity = spool.id
    spool.close()
    (spool.directory / "state").unlink()
    reopened_after_close(spool)
    assert (spool.id, spool.gate[0]) == (identity, 1)
    assert read_all(spool) == (written, 0)


def test_file_that_outlived_its_removal_is_not_read_again(spool: Spool) -> None:
    """The process died when it had written down that all is drained, and before it removed the file."""
    append(spool, content(1))
    [log] = logs(spool)
    kept = log.read_bytes()
    spool.advance(spool.place() + spool.left(spool.place()))
    log.write_bytes(kept)
    assert (read_all(reopened(spool)), spool.gate[0]) == (([], 0), 0)
    append(spool, content(2))
    assert read_all(spool) == ([content(2)], 0)
    spool.advance(spool.place() + spool.left(spool.place()))
    assert logs(spool) == []


def test_places_of_a_forgotten_spool_are_not_used_again(spool: Spool) -> None:
    """The database remembers up to which place it was drained, and would take other records there for drained ones."""
    identity = spool.id
    spool.close()
    (spool.directory / "state").unlink()
    assert reopened_after_close(spool).id != identity


def test_places_that_the_store_has_are_not_used_again(spool: Spool) -> None:
    append(spool, content(1))
    spool.advance(5_000)
    append(spool, content(2))
    assert spool.place() == 5_000
    assert read_all(spool) == ([content(2)], 0)


def test_files_of_two_spools_are_refused(spool: Spool, tmp_path: Path) -> None:
    append(spool, content(1))
    other = Spool(tmp_path / "other", bytes_max=BYTES_MAX)
    append(other, content(2))
    shutil.copy(logs(other)[0], spool.directory)
    other.close()
    with pytest.raises(SpoolUnusable, match="several spools"):
        Spool(spool.directory, bytes_max=BYTES_MAX)
    (spool.directory / logs(other)[0].name).unlink()


def test_record_that_is_set_aside_is_kept_with_its_content(spool: Spool) -> None:
    append(spool, content(1), content(2))
    frames = spool.read(0, bytes_max=1000).frames
    for frame in frames:
        spool.refuse(frame)
        assert not spool.settle(frame.start, frame.start), "not passed yet"
        assert spool.settle(frame.end, frame.start)
    assert [frame for *_, frame in spool.rejected()] == frames
    assert len({identity for _, identity, _ in spool.rejected()}) == 2


def test_refused_record_that_was_pushed_after_all_is_not_kept(spool: Spool) -> None:
    append(spool, content(1))
    [frame] = spool.read(0, bytes_max=1000).frames
    spool.refuse(frame)
    assert spool.settle(frame.end, None)
    assert not list(spool.directory.glob("*.re*"))


def test_record_in_a_payload_is_not_taken_for_one(spool: Spool) -> None:
    """Not even where damage makes the reader look for the next record."""
    append(spool, content(1))
    recorded = logs(spool)[0].read_bytes()
    append(spool, RecordContent(1, recorded), content(3))
    data = bytearray(logs(spool)[0].read_bytes())
    data[len(recorded)] ^= 1  # the marker of the one that contains it
    logs(spool)[0].write_bytes(data)
    found, damaged = read_all(spool)
    assert found == [content(1), content(3)]
    assert damaged == HEADER_BYTES + len(recorded)


# --- Damage -------------------------------------------------------------------------------------------------


def built(directory: Path, count: int) -> tuple[list[RecordContent], list[tuple[Path, int, int]]]:
    """A spool of several files; what is in it, and for each record its file and where it lies there."""
    spool = Spool(directory, bytes_max=BYTES_MAX, file_bytes=200, sync=lambda _: None)
    written, lies = [], []
    for number in range(count):
        one = content(number, 6 * (number % 5))
        append(spool, one)
        path = logs(spool)[-1]
        size = path.stat().st_size
        written.append(one)
        lies.append((path, size - HEADER_BYTES - len(one.body), size))
    spool.close()
    return written, lies


@pytest.mark.parametrize("keep_page", [True, False])
def test_last_record_that_is_cut_off_at_any_byte_is_not_read(tmp_path: Path, keep_page: bool) -> None:
    written, lies = built(tmp_path / "built", 8)
    path, start, end = lies[-1]
    for size in range(start, end):
        directory = tmp_path / str(size)
        shutil.copytree(tmp_path / "built", directory)
        os.truncate(directory / path.name, size)
        found, _ = survived(directory, keep_page=keep_page)
        assert found == written[:-1], f"cut at {size - start}"


@pytest.mark.parametrize("keep_page", [True, False])
@pytest.mark.parametrize("record", [0, 3, -1])
def test_any_wrong_byte_of_a_header_costs_its_record_only(tmp_path: Path, record: int, keep_page: bool) -> None:
    written, lies = built(tmp_path / "built", 8)
    path, start, _ = lies[record]
    spared = [one for one in written if one is not written[record]]
    for offset in range(start, start + HEADER_BYTES):
        directory = tmp_path / str(offset)
        shutil.copytree(tmp_path / "built", directory)
        with (directory / path.name).open("r+b") as file:
            file.seek(offset)
            wrong = file.read(1)[0] ^ 0xFF
            file.seek(offset)
            file.write(bytes([wrong]))
        found, kept = survived(directory, keep_page=keep_page)
        assert (found, kept) == (spared, 1), f"byte {offset - start}"


@examples(50, soak=3000)
@given(data=st.data(), keep_page=st.booleans())
def test_any_prefix_of_a_file_gives_its_whole_records(data: st.DataObject, keep_page: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        written, lies = built(directory, 14)
        cut = data.draw(st.sampled_from(sorted({path for path, _, _ in lies})))
        size = data.draw(st.integers(0, cut.stat().st_size - 1))
        os.truncate(cut, size)
        whole = [one for one, (path, _, end) in zip(written, lies, strict=True) if path != cut or end <= size]
        found, _ = survived(directory, keep_page=keep_page)
    assert found == whole


@examples(80, soak=5000)
@given(data=st.data(), keep_page=st.booleans())
def test_any_flipped_bit_costs_one_record_at_most(data: st.DataObject, keep_page: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        written, lies = built(directory, 14)
        hit = data.draw(st.sampled_from(sorted({path for path, _, _ in lies})))
        bit = data.draw(st.integers(0, hit.stat().st_size * 8 - 1))
        flip(hit, bit)
        spared = [
            one
            for one, (path, start, end) in zip(written, lies, strict=True)
            if path != hit or not start <= bit // 8 < end
        ]
        found, kept = survived(directory, keep_page=keep_page)
    assert len(spared) == len(written) - 1
    assert found == spared
    assert kept == 1, "the damaged bytes are kept"


@examples(40, soak=2000)
@given(data=st.data(), keep_page=st.booleans())
def test_whatever_is_damaged_no_wrong_record_comes_back(data: st.DataObject, keep_page: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        written, lies = built(directory, 10)
        paths = sorted({path for path, _, _ in lies})
        if keep_page:
            paths.append(directory / "state")
        for _ in range(data.draw(st.integers(1, 8))):
            path = data.draw(st.sampled_from(paths))
            if not path.exists() or not path.stat().st_size:
                continue
            change = data.draw(st.sampled_from(("flip", "cut", "insert", "remove", "overwrite")))
            position = data.draw(st.integers(0, path.stat().st_size - 1))
            harm(path, change, position, data.draw(st.binary(min_size=1, max_size=40)))
        found, _ = survived(directory, keep_page=keep_page)
    numbers = [written.index(one) for one in found]
    assert numbers == sorted(set(numbers))


def harm(path: Path, change: str, position: int, noise: bytes) -> None:
    before = path.read_bytes()
    match change:
        case "flip":
            flip(path, position * 8)
        case "cut":
            os.truncate(path, position)
        case "insert":
            path.write_bytes(before[:position] + noise + before[position:])
        case "remove":
            path.unlink()
        case "overwrite":
            path.write_bytes(before[:position] + noise + before[position + len(noise) :])


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def survived(directory: Path, *, keep_page: bool) -> tuple[list[RecordContent], int]:
    """What a new process finds, and goes on appending to; and how many damaged stretches it kept."""
    if not keep_page:
        (directory / "state").unlink(missing_ok=True)
    spool = Spool(directory, bytes_max=BYTES_MAX, file_bytes=200)
    try:
        found, _ = read_all(spool)
        last = RecordContent(7, b"appended afterwards")
        append(spool, last)
        again, _ = read_all(spool)
        assert again == [*found, last]
        return found, len(list(directory.glob("*.damaged")))
    finally:
        spool.close()
