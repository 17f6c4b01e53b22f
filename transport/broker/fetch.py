"""`python -m fleetscope.transport.broker.fetch [--into DIR]`: the broker's jars by Maven, 43 MB, 5-13 s."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from fleetscope.transport.broker.jars import KAFKA_VERSION, default_folder
from fleetscope.transport.errors import ComponentMissing, FleetscopeError

# kafka_2.13 brings log4j-core and slf4j-api 1.7, but nothing between the two: without this binding it logs nothing.
_LOG4J_VERSION = "2.25.5"

_POM = f"""<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>fleetscope</groupId>
  <artifactId>kafka-jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>{_LOG4J_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


def fetch(into: Path) -> Path:
    """Put the jars into `into`, all or nothing; done at once if they are there. ComponentMissing without Maven."""
    into = into.resolve()  # Maven takes a relative outputDirectory from the folder of the POM, not from ours
    if (into / f"kafka_2.13-{KAFKA_VERSION}.jar").exists():
        return into
    maven = shutil.which("mvn")
    if maven is None:
        raise ComponentMissing("no mvn on PATH: the Kafka jars are fetched by Maven")
    draft = into.with_name(f"{into.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    (draft / "pom.xml").write_text(_POM)
    command = [maven, "-q", "-B", "-f", str(draft / "pom.xml"), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={draft}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ComponentMissing(f"Maven could not fetch Kafka {KAFKA_VERSION}:\n{(done.stdout + done.stderr)[-2000:]}")
    shutil.rmtree(into, ignore_errors=True)
    draft.rename(into)
    return into


def main() -> int:
    """Fetch the jars of a broker from Maven into the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=default_folder(), help="folder for the jars")
    try:
        print(fetch(parser.parse_args().into))
    except FleetscopeError as error:
        print(error, file=sys.stderr)
        return 69
    return 0


if __name__ == "__main__":
    sys.exit(main())
