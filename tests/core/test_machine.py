"""Free memory and cores of the machine and of control groups, from trees in the kernel's format."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.core import machine as machine_limits
from fastfeed.core.machine import (
    MIN_FREE_NBYTES,
    cores,
    free_memory_nbytes,
    memory_groups,
    oom_kills,
    quota,
)
from fastfeed.core.unix import usable_cores

GB = 2**30
V2 = {"limit": "memory.max", "used": "memory.current"}
V1 = {"limit": "memory.limit_in_bytes", "used": "memory.usage_in_bytes"}
UNLIMITED_V1 = 9223372036854771712


def group(folder: Path, kind: dict[str, str], limit: object, used: object) -> Path:
    """Create a control group's folder in the format of one version."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / kind["limit"]).write_text(f"{limit}\n")
    (folder / kind["used"]).write_text(f"{used}\n")
    return folder


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the machine have 100 GB of free memory."""
    memory = psutil.virtual_memory()._replace(available=100 * GB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def test_without_control_groups_it_is_the_machines(tmp_path: Path) -> None:
    assert free_memory_nbytes(tmp_path, "0::/\n") == 100 * GB
    assert free_memory_nbytes(tmp_path / "missing", "") == 100 * GB
    assert oom_kills(tmp_path, "0::/\n") is None


@pytest.mark.parametrize(
    ("root", "kind", "own"),
    [
        ("", V2, "0::/jobs/job\n"),
        ("unified", V2, "12:cpu,cpuacct:/jobs/job\n0::/jobs/job\n"),
        ("memory", V1, "9:cpuset:/\n4:memory:/jobs/job\n1:name=systemd:/jobs/job\n"),
        ("memory", V1, "4:hugetlb,memory:/jobs/job\n0::/elsewhere\n"),
    ],
)
def test_the_least_of_all_groups_above_counts(
    tmp_path: Path, root: str, kind: dict[str, str], own: str
) -> None:
    base = tmp_path / root
    job = group(base / "jobs" / "job", kind, 10 * GB, 4 * GB)
    assert free_memory_nbytes(tmp_path, own) == 6 * GB
    work = group(base / "jobs", kind, 12 * GB, 11 * GB)
    assert free_memory_nbytes(tmp_path, own) == GB
    assert [g for g in memory_groups(tmp_path, own) if g != tmp_path][:2] == [job, work], (
        "the innermost first"
    )
    group(base / "other", kind, 1, 1)
    assert free_memory_nbytes(tmp_path, own) == GB, "a group that the process is not in"


@pytest.mark.parametrize(
    ("root", "own", "texts"),
    [
        ("", "0::/jobs/job\n", [{"cpu.max": "50000 100000"}, {"cpu.max": "max 100000"}]),
        (
            "cpu",
            "9:cpuset:/\n4:cpu,cpuacct:/jobs/job\n0::/elsewhere\n",
            [
                {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"},
                {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
            ],
        ),
    ],
)
def test_the_cores_of_the_tightest_group_count(
    tmp_path: Path, root: str, own: str, texts: list[dict[str, str]]
) -> None:
    assert quota(tmp_path / "none", own) is None
    jobs = tmp_path / root / "jobs"
    (jobs / "job").mkdir(parents=True)
    for folder, found in zip((jobs, jobs / "job"), texts, strict=True):
        for name, text in found.items():
            (folder / name).write_text(f"{text}\n")
    assert quota(tmp_path, own) == 0.5
    assert quota(tmp_path, own.replace("/jobs/job", "/jobs")) == 0.5
    assert quota(tmp_path, own.replace("/jobs/job", "/other")) is None


def test_less_than_a_core_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_limits, "quota", lambda: 0.3)
    assert cores() == 1
    monkeypatch.setattr(machine_limits, "quota", lambda: 1e6)
    assert cores() == usable_cores()


def test_in_a_container_the_path_is_the_hosts(tmp_path: Path) -> None:
    """Only the root is visible there."""
    group(tmp_path, V2, 3 * GB, GB)
    assert free_memory_nbytes(tmp_path, "0::/system.slice/docker-4711.scope\n") == 2 * GB


@pytest.mark.parametrize(
    ("kind", "limit"), [(V2, "max"), (V1, UNLIMITED_V1), (V2, ""), (V1, "rubbish"), (V1, -1)]
)
def test_a_group_without_a_limit(tmp_path: Path, kind: dict[str, str], limit: object) -> None:
    own = "0::/\n" if kind is V2 else "4:memory:/\n"
    group(tmp_path if kind is V2 else tmp_path / "memory", kind, limit, 5 * GB)
    assert free_memory_nbytes(tmp_path, own) == 100 * GB


@pytest.mark.parametrize(
    ("limit", "used"), [(3 * GB, 3 * GB), (3 * GB, 4 * GB), (3 * GB, 3 * GB - 5), (0, 0)]
)
def test_a_full_group_leaves_a_little(tmp_path: Path, limit: int, used: int) -> None:
    """The limit may be lowered below the use: the error then comes from what does not fit."""
    group(tmp_path, V2, limit, used)
    assert free_memory_nbytes(tmp_path, "0::/\n") == MIN_FREE_NBYTES


@given(
    groups=st.lists(
        st.tuples(st.integers(1, 200 * GB), st.integers(0, 200 * GB)), min_size=1, max_size=4
    )
)
def test_never_more_than_any_of_them_has(
    tmp_path_factory: pytest.TempPathFactory, groups: list[tuple[int, int]]
) -> None:
    root = tmp_path_factory.mktemp("cgroup")
    folder, path = root, ""
    for number, (limit, used) in enumerate(groups):
        folder, path = folder / f"g{number}", f"{path}/g{number}"
        group(folder, V2, limit, used)
    rooms = [limit - used for limit, used in groups]
    assert free_memory_nbytes(root, f"0::{path}\n") == max(MIN_FREE_NBYTES, min(100 * GB, *rooms))


@pytest.mark.parametrize(
    ("place", "text", "own"),
    [
        (
            "jobs/memory.events",
            "low 0\nhigh 12\nmax 30\noom 4\noom_kill 3\noom_group_kill 1\n",
            "0::/jobs\n",
        ),
        (
            "memory/jobs/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            "4:memory:/jobs\n",
        ),
    ],
)
def test_deaths_for_lack_of_memory_are_counted(
    tmp_path: Path, place: str, text: str, own: str
) -> None:
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert oom_kills(tmp_path, own) == 3
    file.write_text(text.replace("oom_kill 3", "oom_kill_other 3"))
    assert oom_kills(tmp_path, own) is None


def test_the_innermost_group_that_counts_is_asked(tmp_path: Path) -> None:
    for folder, kills in (("a", 7), ("a/b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "memory.events").write_text(f"oom_kill {kills}\n")
    assert oom_kills(tmp_path, "0::/a/b\n") == 2
    assert oom_kills(tmp_path, "0::/a/b/c\n") == 2
    assert oom_kills(tmp_path, "0::/a\n") == 7


def test_this_machine_can_be_read() -> None:
    assert 0 < free_memory_nbytes() <= 100 * GB
    assert oom_kills() is None or oom_kills() >= 0
    assert all(folder.is_dir() for folder in memory_groups())


def test_tasks_that_run_are_not_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pids.max").write_text("50\n")
    (tmp_path / "pids.current").write_text("42\n")
    monkeypatch.setattr(machine_limits, "control_groups", lambda *_, **__: [tmp_path])
    why = "pids.max of the control group, which is 50"
    assert machine_limits.threads_that_fit(1) == (8, why)
    assert machine_limits.threads_that_fit(1, 10) == (18, why)
    assert machine_limits.workers_that_fit(10) == (18, why)


@pytest.mark.parametrize(
    ("kind", "root", "own", "stat"),
    [
        (V2, "", "0::/job\n", "anon 1\ninactive_file {}\n"),
        (V1, "memory", "4:memory:/job\n", "inactive_file 7\ntotal_inactive_file {}\n"),
    ],
)
def test_pages_of_files_are_no_used_memory(
    tmp_path: Path, kind: dict[str, str], root: str, own: str, stat: str
) -> None:
    job = group(tmp_path / root / "job", kind, 8 * GB, 8 * GB)
    (job / "memory.stat").write_text(stat.format(6 * GB))
    assert free_memory_nbytes(tmp_path, own) == 6 * GB
    assert not machine_limits.nearly_full(0.05, tmp_path, own=own)


def test_pages_of_files_that_are_in_use_fill_no_group(tmp_path: Path) -> None:
    job = group(tmp_path / "job", V2, 8 * GB, 8 * GB)
    (job / "memory.stat").write_text(f"inactive_file {GB // 100}\nactive_file {6 * GB}\n")
    assert not machine_limits.nearly_full(0.05, tmp_path, own="0::/job\n")


def test_memory_up_to_the_soft_limit_is_free(tmp_path: Path) -> None:
    job = group(tmp_path / "job", V2, "max", 4 * GB)
    (job / "memory.high").write_text(f"{5 * GB}\n")
    assert free_memory_nbytes(tmp_path, "0::/job\n") == GB
    assert machine_limits.nearly_full(0.25, tmp_path, own="0::/job\n")
    assert not machine_limits.nearly_full(0.05, tmp_path, own="0::/job\n")


@pytest.mark.parametrize(
    ("kind", "root", "own"), [(V2, "", "0::/job\n"), (V1, "memory", "4:memory:/job\n")]
)
def test_a_group_that_is_killed_at_its_limit_is_nearly_full(
    tmp_path: Path, kind: dict[str, str], root: str, own: str
) -> None:
    group(tmp_path / root / "job", kind, 8 * GB, 7 * GB)
    assert machine_limits.nearly_full(0.25, tmp_path, own=own)
    assert not machine_limits.nearly_full(0.05, tmp_path, own=own)


def test_ranks_share_the_cores_unless_they_are_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_limits, "quota", lambda: None)
    monkeypatch.setattr(machine_limits, "usable_cores", lambda: 16)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    for name in machine_limits.LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    assert machine_limits.cores_of_rank() == 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert machine_limits.cores_of_rank() == 2
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert machine_limits.cores_of_rank() == 16


def test_stalls_are_those_of_the_own_group(tmp_path: Path) -> None:
    job = group(tmp_path / "job", V2, "max", 4 * GB)
    text = "some avg10=12.30 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 total=1\n"
    (tmp_path / "memory.pressure").write_text(text.format(9_000_000))
    assert machine_limits.memory_stalls_s(tmp_path, "0::/job\n") == 9.0
    (job / "memory.pressure").write_text(text.format(2_500_000))
    assert machine_limits.memory_stalls_s(tmp_path, "0::/job\n") == 2.5
