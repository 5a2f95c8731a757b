"""Output files: whole or absent, through links, into devices and FIFOs."""

import contextlib
import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from motes.cli import main
from motes.core.errors import InputError
from motes.core.files import all_or_none, atomic_path, check_output_paths, growing_file
from motes.data import load_clips


def write(path: Path, text: str = "new") -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text)


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "a.txt", tmp_path / "a.txt"
    target.write_text("old")
    (tmp_path / "between.txt").symlink_to("there/a.txt")
    link.symlink_to("between.txt")
    with contextlib.suppress(RuntimeError), atomic_path(link) as temporary:
        temporary.write_text("half")
        raise RuntimeError("stop")
    assert target.read_text() == "old"
    write(link)
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert not target.is_symlink()
    assert os.listdir(tmp_path / "there") == ["a.txt"]
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "between.txt", "there"]


def test_a_link_to_nothing_yet_makes_the_file_that_it_names(tmp_path: Path) -> None:
    link = tmp_path / "link.txt"
    link.symlink_to(tmp_path / "later.txt")
    write(link)
    assert link.is_symlink()
    assert (tmp_path / "later.txt").read_text() == "new"


def test_links_that_cannot_be_followed_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("no/file.txt")
    (tmp_path / "folder").symlink_to(".")
    for name, said in (("loop", "link to itself"), ("nowhere", "create"), ("folder", "a folder")):
        with pytest.raises(InputError, match=said) as caught:
            check_output_paths(tmp_path / name)
        assert "\n" not in str(caught.value)
        assert (tmp_path / name).is_symlink()


def receive(path: Path) -> tuple[threading.Thread, list[bytes]]:
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()), daemon=True)
    reader.start()
    return reader, received


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are of Unix")
def test_a_fifo_receives_the_whole_content(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe.txt"
    os.mkfifo(fifo)
    reader, received = receive(fifo)
    write(fifo, "x" * 10**6)  # more than a pipe holds
    reader.join()
    assert received == [b"x" * 10**6]
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe.txt"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are of Unix")
def test_fifos_and_links_take_part_in_all_or_none(tmp_path: Path) -> None:
    fifo, link = tmp_path / "pipe.txt", tmp_path / "link.txt"
    os.mkfifo(fifo)
    link.symlink_to("file.txt")
    with contextlib.suppress(RuntimeError), all_or_none():
        write(fifo)  # no reader: a write before the end of the block would wait for ever
        write(link)
        raise RuntimeError("stop")
    assert not (tmp_path / "file.txt").exists()
    reader, received = receive(fifo)
    with all_or_none():
        write(link)
        write(fifo)
    reader.join()
    assert received == [b"new"]
    assert link.is_symlink()
    assert (tmp_path / "file.txt").read_text() == "new"


def node(path: Path, kind: int, number: tuple[int, int]) -> None:
    """Make a device, as only root can."""
    try:
        os.mknod(path, kind | 0o600, os.makedev(*number))
    except (AttributeError, PermissionError):
        pytest.skip("devices are made by root only")


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    device = tmp_path / "null.npz"
    node(device, stat.S_IFCHR, (1, 3))
    try:
        write(device)
    except InputError as error:
        assert "Operation not permitted" in str(error) or "denied" in str(error)  # noqa: PT017
        pytest.skip("devices of this file system cannot be opened")
    finally:
        assert stat.S_ISCHR(device.stat().st_mode)
        assert os.listdir(tmp_path) == ["null.npz"]
    assert main(["data", "-o", str(device), "--num-clips", "2"]) == 0
    assert stat.S_ISCHR(device.stat().st_mode)


def test_block_devices_and_sockets_are_refused_and_stay(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(InputError, match="socket"):
            write(tmp_path / "socket")
        assert stat.S_ISSOCK((tmp_path / "socket").stat().st_mode)
    node(tmp_path / "disk", stat.S_IFBLK, (7, 250))
    with pytest.raises(InputError, match="block device"):
        write(tmp_path / "disk")
    assert stat.S_ISBLK((tmp_path / "disk").stat().st_mode)


def test_the_command_writes_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.npz").symlink_to("clips.npz")
    assert main(["data", "-o", str(tmp_path / "link.npz"), "--num-clips", "2"]) == 0
    assert (tmp_path / "link.npz").is_symlink()
    assert len(load_clips(tmp_path / "clips.npz")) == 2


def test_of_several_files_all_appear_or_none(tmp_path: Path) -> None:
    old = tmp_path / "old.txt"
    old.write_text("before")
    for failing in (True, False):
        with contextlib.suppress(InputError), all_or_none():
            for name in ("old.txt", "new.txt"):
                with atomic_path(tmp_path / name) as temporary:
                    temporary.write_text("after")
            assert old.read_text() == "before"
            if failing:
                with atomic_path(tmp_path / "no" / "third.txt"):
                    pass
        if failing:
            assert os.listdir(tmp_path) == ["old.txt"]
            assert old.read_text() == "before"
    assert sorted(os.listdir(tmp_path)) == ["new.txt", "old.txt"]
    assert old.read_text() == "after"
    with atomic_path(tmp_path / "later.txt") as temporary:
        temporary.write_text("alone again")
    assert (tmp_path / "later.txt").exists()


def test_a_file_is_synced_to_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, real = [], os.fsync

    def synced(handle: int) -> None:
        order.append((os.fstat(handle).st_ino, (tmp_path / "a.txt").exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", synced)
    write(tmp_path / "a.txt")
    inode = (tmp_path / "a.txt").stat().st_ino
    assert (inode, False) in order


def test_a_growing_file_is_read_while_it_grows(tmp_path: Path) -> None:
    target, link = tmp_path / "rows.csv", tmp_path / "link.csv"
    target.write_text("old rows, longer than the new ones\n")
    link.symlink_to(target)
    with growing_file(link) as file:
        file.write("1\n")
        file.flush()
        assert target.read_bytes() == b"1\n"
        file.write("2\n")
    assert target.read_bytes() == b"1\n2\n"
    assert link.is_symlink()


def test_a_growing_file_is_refused_where_others_are(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in ("loop", "no/rows.csv", "."):
        with pytest.raises(InputError) as caught, growing_file(tmp_path / name):
            pass
        assert "\n" not in str(caught.value)
    with growing_file("/dev/null") as file:
        file.write("1\n")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are of Unix")
def test_rows_reach_a_fifo_as_they_come(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe.csv"
    os.mkfifo(fifo)
    first, rest = threading.Event(), []

    def read() -> None:
        with open(fifo, "rb") as stream:
            rest.append(stream.readline())
            first.set()
            rest.append(stream.read())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with growing_file(fifo) as file:
        file.write("1\n")
        file.flush()
        assert first.wait(60)
        file.write("2\n")
    reader.join(60)
    assert rest == [b"1\n", b"2\n"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)
