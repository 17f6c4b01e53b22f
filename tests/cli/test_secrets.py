"""Passwords and keys in the configuration: on no command line, in no log, on no page, in no answer, in no file."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import psutil
import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from fleetscope.cli.check import check
from fleetscope.cli.settings import settings
from fleetscope.schema import secrets
from fleetscope.schema.config import load
from fleetscope.schema.errors import ConfigInvalid
from fleetscope.transport.kafka.settings import cluster_of

PASSWORD, KEY, SESSION = "p4ss word/of+kafka", "k3y+of/the=lake", "t0ken-of-the-session"
BEARER, TENANT = "b3arer/of+otlp", "t3nant-of-otlp"
EVERY = (PASSWORD, KEY, SESSION, BEARER, TENANT)


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of somebody who takes connections and hangs up: no broker, no store."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)

        def hang_up() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                peer.close()

        threading.Thread(target=hang_up, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def environment(tmp_path: Path, silent: int) -> dict[str, str]:
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    headers = tmp_path / "headers"
    headers.write_text(f"Authorization: Bearer {BEARER}\n")
    options = {"endpoint": f"http://127.0.0.1:{silent}", "access_key_id": "id", "secret_access_key": KEY}
    return {
        **{name: value for name, value in os.environ.items() if name != "COLUMNS"},  # a table that is shortened hides
        "FLEETSCOPE_STATE_DIR": str(tmp_path / "s"),
        "FLEETSCOPE_LOG__URL": f"kafka://127.0.0.1:{silent}",
        "FLEETSCOPE_LOG__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "FLEETSCOPE_LOG__SASL_USER": "agent",
        "FLEETSCOPE_LOG__SASL_PASSWORD_FILE": str(password),
        "FLEETSCOPE_LAKE__URL": "s3://bucket/lake",
        "FLEETSCOPE_LAKE__OPTIONS": json.dumps(options),
        "FLEETSCOPE_EXPORTER__ADDRESS": "127.0.0.1:0",
        "FLEETSCOPE_AGENT__METRICS_ADDRESS": "127.0.0.1:0",
        "AWS_SESSION_TOKEN": SESSION,
        "FLEETSCOPE_OTLP__ENDPOINT": f"http://127.0.0.1:{silent}/v1/metrics",
        "FLEETSCOPE_OTLP__INTERVAL_S": "1",
        "FLEETSCOPE_OTLP__TIMEOUT_S": "1",
        "FLEETSCOPE_OTLP__HEADERS_FILE": str(headers),
        "FLEETSCOPE_OTLP__HEADERS": json.dumps({"X-Scope-OrgID": TENANT}),
    }


def _forms(secret: str) -> set[str]:
    return {secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1], json.dumps(secret)[1:-1]}


def _shown(texts: list[str]) -> set[str]:
    return {form for secret in EVERY for form in _forms(secret) if any(form in text for text in texts)}


@pytest.mark.e2e
@pytest.mark.parametrize("role", ["agent", "up", "doctor"])
def test_a_role_tells_no_secret(
    role: str, environment: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """`up` is worker, coordinator and exporter. At the debug level kafka-python logs all it was given."""
    verbose = ["--verbose"] if role in ("agent", "up") else []
    said = tmp_path / "said"
    with said.open("wb") as out:
        command = [sys.executable, "-m", "fleetscope.cli.main", *role.split(), *verbose]
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
        request.addfinalizer(process.kill)
        lines: list[str] = []
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for one in family:
                try:
                    lines.append(" ".join(one.cmdline()))
                except psutil.Error:
                    continue
            tried = said.read_bytes()
            if role == "agent" and b"cannot be read" in tried and b"does not take all metrics" in tried:
                process.send_signal(signal.SIGTERM)  # it has tried its log and its receiver, and goes on trying
            time.sleep(0.25)
        assert process.wait(60) is not None
    text = said.read_text()
    files = [p.read_bytes().decode("latin-1") for p in (tmp_path / "s").rglob("*") if p.is_file()]
    assert lines
    assert _shown(lines) == set()
    assert _shown([text]) == set()
    assert _shown(files) == set()
    assert "127.0.0.1" in text, "it has tried"


@pytest.mark.unit
def test_a_secret_on_a_command_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="command lines"):
        settings(None, log="kafka://h:9092?sasl_plain_password=x")
    assert settings(None, log=f"file://{tmp_path}").log_url == f"file://{tmp_path}"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("kafka://h:9092,k:9092", "kafka://h:9092,k:9092"),
        ("file:///var/log?sync=always", "file:///var/log?sync=always"),
        ("kafka://h:1?sasl_user=u&sasl_password_file=/p/w", "kafka://h:1?sasl_user=u&sasl_password_file=/p/w"),
        (
            "kafka://h:1?sasl_plain_username=u&sasl_plain_password=x%2By&linger_ms=5",
            "kafka://h:1?sasl_plain_username=u&sasl_plain_password=***&linger_ms=5",
        ),
        ("s3://key:hidden@bucket/p?X-Amz-Security-Token=q", "s3://key:***@bucket/p?X-Amz-Security-Token=***"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert secrets.shown(url) == shown


@pytest.mark.unit
def test_what_a_library_logs_of_its_settings_is_masked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """kafka-python's admin client logs all it was given, at the debug level, the password too."""
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    url = f"kafka://127.0.0.1:1?security_protocol=SASL_PLAINTEXT&sasl_user=u&sasl_password_file={tmp_path}/password"
    settings_of_client = cluster_of(url, {}).client()
    with caplog.at_level(logging.DEBUG, "kafka"), pytest.raises(KafkaError):
        KafkaAdminClient(**{**settings_of_client, "bootstrap_timeout_ms": 1})
    said = [record for record in caplog.records if PASSWORD in record.getMessage()]
    assert said, "else there is nothing to mask"
    formatter = secrets.MaskingFormatter("%(message)s")
    assert _shown([formatter.format(record) for record in caplog.records]) == set()
    assert any(secrets.MASK in formatter.format(record) for record in said)


@pytest.mark.unit
def test_the_configuration_in_force_is_printed_without_secrets(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    check(None, None)
    text = capsys.readouterr().out
    assert _shown([text]) == set()
    loaded = load()
    assert _shown([repr(loaded), str(loaded)]) == set()
    assert loaded.lake_options["secret_access_key"] == KEY
