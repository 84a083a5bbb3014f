"""Unnamed memory: shared by every holder of the descriptor, of fixed size, and gone with its last
view."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.ring.memory import PAGE, Descriptor, Segment
from tests.helpers.rings import mapped_nbytes


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@given(st.integers(1, 3 * PAGE))
def test_two_mappings_see_the_same(nbytes: int) -> None:
    here = Segment.create(nbytes, "fastfeed-test")
    there = Segment(here.fd, nbytes)
    here.close_fd()
    assert bytes(there.map[:nbytes]) == bytes(nbytes), "it begins as zeros"
    here.map[nbytes - 1] = 7
    assert there.map[nbytes - 1] == 7
    assert mapped_nbytes("fastfeed-test") >= 2 * nbytes


def test_it_lives_as_long_as_a_view_of_it() -> None:
    segment = Segment.create(PAGE, "fastfeed-test")
    view = np.frombuffer(segment.map, np.uint8)[5:6]
    segment.close_fd()
    segment.close_fd()  # may be repeated: the number may belong to another file by now
    del segment
    gc.collect()
    assert mapped_nbytes("fastfeed-test") == PAGE
    view[0] = 3
    del view
    gc.collect()
    assert mapped_nbytes("fastfeed-test") == 0


def test_its_size_can_never_change() -> None:
    """Truncation would kill every process that reads it (SIGBUS)."""
    segment = Segment.create(2 * PAGE, "fastfeed-test")
    try:
        for nbytes in (PAGE, 0, 3 * PAGE):
            with pytest.raises(PermissionError):
                os.ftruncate(segment.fd, nbytes)
    finally:
        segment.close_fd()


def test_it_has_no_name_in_the_file_system_and_no_child_inherits_it() -> None:
    segment = Segment.create(PAGE, "fastfeed-test")
    try:
        assert os.readlink(f"/proc/self/fd/{segment.fd}") == "/memfd:fastfeed-test (deleted)"
        assert not os.get_inheritable(segment.fd)
    finally:
        segment.close_fd()


def test_a_read_only_mapping_cannot_be_written() -> None:
    segment = Segment.create(PAGE, "fastfeed-test")
    reader = Segment(segment.fd, PAGE, writable=False)
    segment.close_fd()
    with pytest.raises(TypeError):
        reader.map[0] = 1
    assert not np.frombuffer(reader.map, np.uint8).flags.writeable


def test_populating_takes_the_pages_now() -> None:
    segment = Segment.create(8 * PAGE, "fastfeed-test")
    try:
        assert os.fstat(segment.fd).st_blocks == 0
        segment.populate(2 * PAGE, 3 * PAGE, write=True)
        assert os.fstat(segment.fd).st_blocks * 512 == 3 * PAGE
        segment.populate(0, 8 * PAGE, write=False)
        assert bytes(segment.map[:]) == bytes(8 * PAGE), "and changes nothing"
    finally:
        segment.close_fd()


def test_a_failed_mapping_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises((ValueError, OSError)):
        Segment.create(0, "fastfeed-test")
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_descriptor_is_closed_with_its_last_holder() -> None:
    ends = [Descriptor(fd) for fd in os.pipe()]
    again, numbers = list(ends), [d.fd for d in ends]
    ends.clear()
    assert all(map(is_open, numbers))
    again.clear()
    gc.collect()
    assert not any(map(is_open, numbers))


def test_a_descriptor_that_was_closed_already_is_no_error() -> None:
    descriptor = Descriptor(os.open("/dev/null", os.O_RDONLY))
    os.close(descriptor.fd)
    descriptor.__del__()
