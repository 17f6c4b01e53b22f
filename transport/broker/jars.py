"""Where the broker's jars are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fleetscope.transport.errors import ComponentMissing

KAFKA_VERSION = "4.4.0"
_CHECKOUT = Path(__file__).resolve().parents[2]


def default_folder() -> Path:
    """`$FLEETSCOPE_KAFKA_LIB`, else `$FLEETSCOPE_COMPONENTS/kafka`, else `.components/kafka` of the checkout."""
    if named := os.environ.get("FLEETSCOPE_KAFKA_LIB"):
        return Path(named)
    return Path(os.environ.get("FLEETSCOPE_COMPONENTS", _CHECKOUT / ".components")) / "kafka"


def find_jars(folder: Path | None = None) -> Path:
    """The folder with the jars; ComponentMissing says how to get them."""
    folder = folder or default_folder()
    if not any(folder.glob("kafka_*.jar")):
        raise ComponentMissing(f"no Kafka jars in {folder}: run `python -m fleetscope.transport.broker.fetch`")
    return folder


def find_java() -> str:
    """Path of `java`; ComponentMissing if there is none. Kafka 4 needs 17, which it says itself if it is older."""
    java = os.environ.get("JAVA_HOME")
    path = f"{java}/bin/java" if java else shutil.which("java")
    if path is None or not os.access(path, os.X_OK):
        raise ComponentMissing("no java on PATH: a Kafka broker needs Java 17 or newer")
    return path
