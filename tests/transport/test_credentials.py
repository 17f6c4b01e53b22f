"""Files of certificates, keys and passwords: what cannot be used is named with file, line and reason, before anything
is connected to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from fleetscope.schema.config import Config, load
from fleetscope.schema.errors import ConfigInvalid
from fleetscope.transport.errors import BadLogUrl, CredentialUnreadable
from fleetscope.transport.kafka.settings import KafkaSettings, cluster_of
from fleetscope.transport.preflight import check_settings

pytestmark = pytest.mark.unit


@pytest.fixture
def pair(authority, tmp_path: Path) -> Path:
    """A folder with ca.pem, node.crt and node.key to spoil."""
    authority.sign("node")
    for name in ("ca.pem", "node.crt", "node.key"):
        (tmp_path / name).write_bytes((authority.folder / name).read_bytes())
    return tmp_path


def _check(pair: Path, **files: str) -> None:
    given = {"ssl_ca_file": "ca.pem", "ssl_cert_file": "node.crt", "ssl_key_file": "node.key", **files}
    query = "&".join(f"{key}={pair / name}" for key, name in given.items())
    check_settings(f"kafka://127.0.0.1:1?security_protocol=SSL&{query}")


def _cut(text: str) -> str:
    return text[: len(text) // 2]


def _letter(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:3], "?" + lines[3][1:], *lines[4:]])


def _byte(text: str) -> str:
    """Still base64, no longer DER."""
    lines = text.splitlines(keepends=True)
    return "".join([lines[0], "A" * 8 + lines[1][8:], *lines[2:]])


SPOILED: dict[str, tuple[str, Callable[[str], str], str]] = {
    "a CA file cut off": ("ca.pem", _cut, r"ca\.pem, line 1: CERTIFICATE begins and does not end"),
    "a CA file that is no base64": ("ca.pem", _letter, r"ca\.pem, line 1: no certificate"),
    "a CA file that is no DER inside": ("ca.pem", _byte, r"ca\.pem, line 1: no certificate"),
    "a second certificate spoiled": ("ca.pem", lambda text: text + _byte(text), r"ca\.pem, line \d\d: no certificate"),
    "an empty CA file": ("ca.pem", lambda text: "", r"ca\.pem: no CERTIFICATE in it"),
    "an end without a beginning": (
        "ca.pem",
        lambda text: text.split("\n", 1)[1],
        r"line \d+: END CERTIFICATE, where noth",
    ),
    "a certificate cut off": ("node.crt", _cut, r"node\.crt, line 1: CERTIFICATE begins"),
    "a key cut off": ("node.key", _cut, r"node\.key, line 1: PRIVATE KEY begins"),
    "a key that is no DER inside": ("node.key", _byte, r"node\.key, line 1: no usable private key"),
    "no key": ("node.key", lambda text: "nothing\n", r"node\.key: no PRIVATE KEY in it"),
}


def test_files_in_order_are_taken(pair: Path) -> None:
    _check(pair)
    (pair / "both.pem").write_bytes((pair / "node.key").read_bytes() + (pair / "node.crt").read_bytes())
    _check(pair, ssl_cert_file="both.pem", ssl_key_file="both.pem")


@pytest.mark.parametrize("what", SPOILED)
def test_a_spoiled_file_is_named_with_line_and_reason(pair: Path, what: str) -> None:
    name, spoil, message = SPOILED[what]
    (pair / name).write_text(spoil((pair / name).read_text()))
    with pytest.raises(CredentialUnreadable, match=message):
        _check(pair)


def test_what_is_no_text_absent_a_folder_or_anothers(pair: Path, authority) -> None:
    (pair / "ca.der").write_bytes(authority.certificate.public_bytes(serialization.Encoding.DER))
    with pytest.raises(CredentialUnreadable, match=r"ca\.der, line \d+: no text \(PEM is expected"):
        _check(pair, ssl_ca_file="ca.der")
    with pytest.raises(CredentialUnreadable, match=r"gone\.pem: No such file"):
        _check(pair, ssl_ca_file="gone.pem")
    with pytest.raises(CredentialUnreadable, match=r": Is a directory"):
        _check(pair, ssl_key_file=".")
    (pair / "huge.pem").write_bytes(b"\n" * (5 << 20))
    with pytest.raises(CredentialUnreadable, match=r"larger than 4 MiB"):
        _check(pair, ssl_ca_file="huge.pem")
    authority.sign("other")
    with pytest.raises(CredentialUnreadable, match=r"other\.key, line 1: not the key of .*node\.crt"):
        _check(pair, ssl_key_file=str(authority.folder / "other.key"))


def test_an_encrypted_key_is_refused_and_no_terminal_asked(pair: Path, authority) -> None:
    encrypted = authority.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    (pair / "node.key").write_bytes(encrypted)
    with pytest.raises(CredentialUnreadable, match=r"node\.key, line 1: the key is encrypted"):
        _check(pair)


def _log_in(file: Path | str) -> dict[str, object]:
    cluster = cluster_of(
        f"kafka://h:1?security_protocol=SASL_PLAINTEXT&sasl_user=a%3Db,c&sasl_password_file={file}", {}
    )
    return cluster.login()


def test_a_password_is_one_line_of_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    for written in ("pass word\n", "pass word\r\n", "pass word"):
        file.write_text(written)
        login = _log_in(file)
        assert login["sasl_plain_password"] == "pass word"
        assert login["sasl_plain_username"] == "a=3Db=2Cc"  # RFC 5802, 5.1
    monkeypatch.setenv("FLEETSCOPE_LOG_PASSWORD", "from there")
    assert _log_in("")["sasl_plain_password"] == "from there"
    assert _log_in(file)["sasl_plain_password"] == "pass word"
    monkeypatch.delenv("FLEETSCOPE_LOG_PASSWORD")
    for written, message in (("", "line 1: empty"), ("\nx", "line 1: empty"), ("secret\nmore\n", "line 2: more than")):
        file.write_text(written)
        with pytest.raises(CredentialUnreadable, match=message) as caught:
            _log_in(file)
        assert "secret" not in str(caught.value)
    with pytest.raises(CredentialUnreadable, match=r"neither log\.sasl_password_file nor"):
        _log_in("")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("security_protocol=TLS", "security_protocol is one of PLAINTEXT, SSL,"),
        ("security_protocol=SASL_SSL", "sasl_user names nobody"),
        ("security_protocol=SASL_SSL&sasl_user=x&sasl_mechanism=GSSAPI", "sasl_mechanism is one of"),
        ("sasl_user=x", "would not log in"),
        ("security_protocol=SASL_PLAINTEXT&sasl_user=x&sasl_mechanism=PLAIN", "show it to the network"),
        ("ssl_ca_file=/ca", "no TLS"),
        ("security_protocol=SSL&ssl_key_file=/key", "without ssl_cert_file"),
        ("sasl_password=secret", "unknown setting 'sasl_password'"),
    ],
)
def test_settings_that_contradict_each_other(query: str, message: str) -> None:
    with pytest.raises(BadLogUrl, match=message) as caught:
        cluster_of(f"kafka://h:1?{query}", {})
    assert "secret" not in str(caught.value)


def test_configuration_becomes_a_url_without_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETSCOPE_LOG_PASSWORD", "s3cret")
    monkeypatch.setenv("FLEETSCOPE_LOG__SASL_USER", "a&b=c")
    file = tmp_path / "f.yaml"
    file.write_text(
        "log: {url: 'kafka://h:1?linger_ms=7', security_protocol: SASL_SSL, ssl_ca_file: /e/ca, "
        "ssl_check_hostname: false}"
    )
    config = load(file)
    cluster = cluster_of(config.log_url, {})
    assert cluster.settings == KafkaSettings(
        linger_ms=7, security_protocol="SASL_SSL", sasl_user="a&b=c", ssl_ca_file="/e/ca", ssl_check_hostname=False
    )
    for text in (config.log_url, str(cluster), repr(cluster.settings), config.model_dump_json()):
        assert "s3cret" not in text
    assert load(file, log={"url": "file:///x", "security_protocol": "SSL"}).log_url == "file:///x"
    monkeypatch.setenv("FLEETSCOPE_LOG__SASL_PASSWORD", "s3cret")
    with pytest.raises(ConfigInvalid, match=r"unknown key 'log\.sasl_password'") as caught:
        load(file)
    assert "s3cret" not in str(caught.value)


def test_settings_of_configuration_and_of_the_log_have_the_same_defaults() -> None:
    of_log = {name: field.default for name, field in Config.model_fields["log"].annotation.model_fields.items()}
    for name in of_log.keys() & set(KafkaSettings.__slots__):
        assert (of_log[name] or "") == (getattr(KafkaSettings(), name) or "")
