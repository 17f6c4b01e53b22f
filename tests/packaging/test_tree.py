"""What the committed tree may not say."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

# Written in pieces, or this file would find itself.
HOME_FOLDERS = re.compile(r"(?<![A-Za-z0-9_.\-/])/(?:" + "|".join(["work", "root", "farm", "Users"]) + r")/[A-Za-z.]")
BUILD_FOLDERS = re.compile("/tmp/" + r"(?:bash_jobs|w/)|\.pyenv" + "/versions")
REGISTRY_HOSTS = re.compile(
    r"pypi"
    + r"\.org|pythonhosted"
    + r"\.org|npmjs"
    + r"\.|proxy"
    + r"\.golang|deb"
    + r"\.debian|repo[0-9a-z.]*"
    + r"\.maven\."
)


@pytest.fixture(scope="module")
def texts(repository: Path) -> dict[str, str]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=True)
    found = {}
    for name in filter(None, listing.stdout.split("\0")):
        path = repository / name
        if path.is_symlink() or not path.is_file():
            continue
        try:
            found[name] = path.read_text()
        except UnicodeDecodeError:
            continue
    assert len(found) > 20
    return found


@pytest.mark.parametrize("pattern", [HOME_FOLDERS, BUILD_FOLDERS, REGISTRY_HOSTS], ids=["home", "build", "registry"])
def test_no_trace_of_a_machine(texts: dict[str, str], pattern: re.Pattern[str]) -> None:
    """Absolute paths and registry addresses hold on one machine only."""
    hits = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert hits == []


def test_patterns_find_what_they_should() -> None:
    assert HOME_FOLDERS.search("see /" + "work/main/x.py")
    assert HOME_FOLDERS.search('open("/' + 'root/.cache")')
    assert not HOME_FOLDERS.search("docs/" + "work/order.md")
    assert REGISTRY_HOSTS.search("https://" + "pypi" + ".org/simple")


def test_no_room_without_a_name(texts: dict[str, str]) -> None:
    nameless = re.compile(r"(^|/)(utils?|helpers?|common|misc)(\.[a-z]+|/)")
    assert [name for name in texts if nameless.search(name)] == []


def test_the_type_checkers_link_leads_to_the_root(repository: Path) -> None:
    assert (repository / ".ns" / "fleetscope").resolve() == repository
