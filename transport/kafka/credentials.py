"""Certificates, keys and passwords from files: all of them right, or named with file, line and reason.

OpenSSL alone says "[SSL] PEM lib" without the file, takes a CA file that is cut off as far as it goes, and asks the
terminal for the password of an encrypted key, where a daemon would wait for ever.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fleetscope.schema import secrets
from fleetscope.transport.errors import CredentialUnreadable

PASSWORD_VARIABLE = "FLEETSCOPE_LOG_PASSWORD"

_MARK = re.compile(r"^-----(BEGIN|END) ([A-Z0-9 ]+)-----\s*$")
_SIZE_LIMIT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Block:
    """One object of a PEM file, with its marks; `line` is that of its BEGIN."""

    label: str
    line: int
    text: str


def password_of(file: str) -> str:
    """The first line of `file`, or the variable where none is named. CredentialUnreadable if there is no password."""
    if not file:
        if found := os.environ.get(PASSWORD_VARIABLE):
            secrets.remember([found])
            return found
        raise CredentialUnreadable(f"no password: neither log.sasl_password_file nor ${PASSWORD_VARIABLE} is set")
    lines = _text(file).removesuffix("\n").removesuffix("\r").split("\n")
    if not lines[0]:
        raise CredentialUnreadable(f"{file}, line 1: empty where the password is expected")
    if len(lines) > 1:
        raise CredentialUnreadable(f"{file}, line 2: more than the one line of a password")
    secrets.remember([lines[0]])
    return lines[0]


def tls_context(ca_file: str, cert_file: str, key_file: str) -> ssl.SSLContext:
    """A client's context that checks chain and host name, TLS 1.2 or newer. Empty names are left to the system (the
    CA), absent (the certificate) or in the certificate's file (the key)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file:
        for block in _certificates(ca_file):
            context.load_verify_locations(cadata=block.text)
    else:
        context.load_default_certs()
    if cert_file:
        list(_certificates(cert_file))
        _load_chain(context, cert_file, key_file)
    return context


def _load_chain(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    where = key_file or cert_file
    keys = [block for block in _blocks(where) if block.label.endswith("PRIVATE KEY")]
    if not keys:
        raise CredentialUnreadable(f"{where}: no PRIVATE KEY in it")
    if keys[0].label.startswith("ENCRYPTED") or "Proc-Type: 4,ENCRYPTED" in keys[0].text:
        raise CredentialUnreadable(f"{where}, line {keys[0].line}: the key is encrypted; give it without a passphrase")
    try:
        context.load_cert_chain(cert_file, key_file or None)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise CredentialUnreadable(f"{where}, line {keys[0].line}: not the key of {cert_file}") from error
        raise CredentialUnreadable(f"{where}, line {keys[0].line}: no usable private key ({_reason(error)})") from error


def _certificates(file: str) -> Iterator[_Block]:
    """The certificates of a file, each one that OpenSSL can read; at least one."""
    found = [block for block in _blocks(file) if block.label == "CERTIFICATE"]
    if not found:
        raise CredentialUnreadable(f"{file}: no CERTIFICATE in it (PEM is expected, not DER, PKCS#12 or JKS)")
    for block in found:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=block.text)
        except (ssl.SSLError, ValueError) as error:
            raise CredentialUnreadable(f"{file}, line {block.line}: no certificate ({_reason(error)})") from error
        yield block


def _blocks(file: str) -> list[_Block]:
    """The objects of a PEM file. CredentialUnreadable for one that is not closed, or closed as another."""
    blocks = []
    begun: tuple[str, int] | None = None
    lines = _text(file).splitlines()
    for number, line in enumerate(lines, 1):
        mark = _MARK.match(line)
        if mark is None:
            continue
        kind, label = mark.groups()
        if kind == "BEGIN" and begun is None:
            begun = (label, number)
        elif kind == "END" and begun is not None and begun[0] == label:
            blocks.append(_Block(label, begun[1], "\n".join(lines[begun[1] - 1 : number]) + "\n"))
            begun = None
        else:
            open_since = f"{begun[0]} of line {begun[1]} is open" if begun else "nothing is open"
            raise CredentialUnreadable(f"{file}, line {number}: {kind} {label}, where {open_since}")
    if begun is not None:
        raise CredentialUnreadable(f"{file}, line {begun[1]}: {begun[0]} begins and does not end: the file is cut off")
    return blocks


def _text(file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            raw = opened.read(_SIZE_LIMIT_BYTES + 1)
    except OSError as error:
        raise CredentialUnreadable(f"{file}: {error.strerror or error}") from error
    if len(raw) > _SIZE_LIMIT_BYTES:
        raise CredentialUnreadable(f"{file}: larger than {_SIZE_LIMIT_BYTES >> 20} MiB")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise CredentialUnreadable(f"{file}, line {line}: no text (PEM is expected, not DER or PKCS#12)") from error


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
