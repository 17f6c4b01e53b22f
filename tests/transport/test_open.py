"""Opening logs, fetching and running the broker as a command does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetscope.transport import TopicSpec, open_log, shared_log
from fleetscope.transport.broker.fetch import fetch
from fleetscope.transport.broker.jars import KAFKA_VERSION, find_jars, find_java
from fleetscope.transport.errors import BadLogUrl, ComponentMissing, LogDamaged

pytestmark = pytest.mark.unit


def test_a_shared_log_is_one_per_process_and_settings(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    first = shared_log(url)
    assert shared_log(url) is first
    assert shared_log(url, sync="never") is not first
    first.create_topics([TopicSpec("t")])
    assert shared_log(url, sync="never").topics() == ("t",)


def test_a_path_may_hold_any_character(tmp_path: Path) -> None:
    with open_log(f"file://{tmp_path}/a%20b%3Fc") as log:
        log.create_topics([TopicSpec("t")])
    assert (tmp_path / "a b?c" / "topics" / "t").is_dir()


@pytest.mark.parametrize("url", ["file://host/path", "file:relative", "file://"])
def test_an_embedded_log_needs_an_absolute_path(url: str) -> None:
    with pytest.raises(BadLogUrl, match="absolute"):
        open_log(url)


def test_settings_of_the_url_and_of_the_call(tmp_path: Path) -> None:
    with open_log(f"file://{tmp_path}?segment_bytes=1000&sync=always", segment_bytes=2000) as log:
        assert (log.settings.segment_bytes, log.settings.sync) == (2000, "always")
    with pytest.raises(BadLogUrl, match="sync"):
        open_log(f"file://{tmp_path}", sync="sometimes")


def test_a_place_that_cannot_be_a_log(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogDamaged, match="file"):
        open_log(f"file://{tmp_path}/file")


def test_an_idle_log_has_no_thread_and_a_closed_one_no_file(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    log = open_log(f"file://{tmp_path}")
    log.create_topics([TopicSpec("t", 2)])
    log.end_offsets("t")
    assert threading.active_count() == threads
    log.append("t", b"k", b"v")
    assert threading.active_count() == threads + 1
    list(log.read("t", 0, 0, log.end_offsets("t")[0]))
    log.close()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ComponentMissing, match="no Kafka jars"):
        find_jars(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ComponentMissing, match="Java 17"):
        find_java()
    with pytest.raises(ComponentMissing, match="mvn"):
        fetch(tmp_path / "jars")


def test_fetched_jars_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    (tmp_path / f"kafka_2.13-{KAFKA_VERSION}.jar").write_bytes(b"")
    assert fetch(tmp_path) == tmp_path == find_jars(tmp_path)


@pytest.mark.e2e
def test_a_broker_for_a_person(require: Callable[[str], Path], tmp_path: Path) -> None:
    jars = require("kafka")
    script = (
        "import sys; from pathlib import Path; from fleetscope.transport.broker.broker import run_foreground; "
        "sys.exit(run_foreground(Path(sys.argv[1]), Path(sys.argv[2])))"
    )
    process = subprocess.Popen([sys.executable, "-c", script, tmp_path, jars], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    with open_log(url) as log:
        log.create_topics([TopicSpec("t")])
        assert log.topics() == ("t",)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    process.stdout.close()
