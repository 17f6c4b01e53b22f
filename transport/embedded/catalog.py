"""Topics as folders: made, found and deleted atomically, by several processes at once."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from fleetscope.transport.embedded.files import PartitionFiles
from fleetscope.transport.embedded.segment import SegmentHeader, create_segment, sync_folder
from fleetscope.transport.errors import LogDamaged, TopicConflict, UnknownTopic
from fleetscope.transport.log import TopicInfo, TopicSpec
from fleetscope.transport.names import check_name, is_name

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Stamp:
    """Tells whether topic.json is still the same file."""

    inode: int
    ctime_ns: int


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic as its folder describes it."""

    spec: TopicSpec
    info: TopicInfo
    folder: Path
    stamp: Stamp

    def partition(self, number: int) -> PartitionFiles:
        """UnknownTopic if the topic has no such partition."""
        if not 0 <= number < self.info.partitions:
            raise UnknownTopic(f"{self.info.name} has {self.info.partitions} partitions, no partition {number}")
        return PartitionFiles(
            self.folder / str(number), self.info.name, self.info.topic_id, number, self.spec.compacted
        )


class Catalog:
    """`<root>/topics/<name>/topic.json` + one folder per partition. Holds no state."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._topics = root / "topics"
        self._topics.mkdir(parents=True, exist_ok=True)
        (root / "groups").mkdir(exist_ok=True)
        self._check_format(root / "log.json")

    def create(self, spec: TopicSpec) -> None:
        """Of two creators one wins and both see the same topic: renaming onto a folder that is not empty fails."""
        if spec.partitions < 1:
            raise TopicConflict(f"{spec.name}: {spec.partitions} partitions")
        folder = self._topics / check_name(spec.name)
        if not folder.exists():
            topic_id = uuid.uuid4().hex
            draft = self._topics / f"{spec.name}~{topic_id}"
            draft.mkdir()
            for number in range(spec.partitions):
                part = draft / str(number)
                part.mkdir()
                os.close(create_segment(part, SegmentHeader(0, topic_id, number, int(time.time() * 1000))))
            write_durably(draft / "topic.json", {"format": FORMAT, "topic_id": topic_id, **asdict(spec)})
            try:
                os.rename(draft, folder)
                sync_folder(self._topics)
            except OSError:
                shutil.rmtree(draft, ignore_errors=True)
                if not folder.exists():
                    raise
        existing = self.load(spec.name)
        if (existing.info.partitions, existing.spec.compacted) != (spec.partitions, spec.compacted):
            raise TopicConflict(
                f"{spec.name} exists with {existing.info.partitions} partitions, compacted={existing.spec.compacted}; "
                f"asked for {spec.partitions}, compacted={spec.compacted}"
            )

    def delete(self, name: str) -> None:
        """Remove a topic with all its messages; one that is not there is no error."""
        folder = self._topics / check_name(name)
        doomed = self._topics / f"{name}~{uuid.uuid4().hex}"
        try:
            os.rename(folder, doomed)
        except FileNotFoundError:
            return
        shutil.rmtree(doomed, ignore_errors=True)

    def names(self) -> tuple[str, ...]:
        """Topics that are there, sorted."""
        return tuple(sorted(name for name in os.listdir(self._topics) if is_name(name)))

    def load(self, name: str) -> StoredTopic:
        """UnknownTopic if there is none, LogDamaged if its description cannot be read."""
        folder = self._topics / check_name(name)
        path = folder / "topic.json"
        try:
            with open(path, "rb") as file:
                stat = os.fstat(file.fileno())
                stored = json.load(file)
            spec = TopicSpec(**{field: stored[field] for field in TopicSpec.__slots__})
            info = TopicInfo(name, stored["topic_id"], spec.partitions)
        except FileNotFoundError:
            raise UnknownTopic(f"no topic {name} in {self.root}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise LogDamaged(f"{path} cannot be read: {error}") from error
        return StoredTopic(spec, info, folder, Stamp(stat.st_ino, stat.st_ctime_ns))

    def stamp(self, name: str) -> Stamp | None:
        """None if there is no such topic. One system call."""
        try:
            stat = os.stat(self._topics / name / "topic.json")
        except FileNotFoundError:
            return None
        return Stamp(stat.st_ino, stat.st_ctime_ns)

    def _check_format(self, path: Path) -> None:
        if not path.exists():
            write_durably(path, {"format": FORMAT})
        try:
            found = json.loads(path.read_bytes())["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise LogDamaged(f"{path} cannot be read: {error}") from error
        if found != FORMAT:
            raise LogDamaged(f"{path}: format {found}, this version reads {FORMAT}")


def write_durably(path: Path, content: object) -> None:
    """Replace the file atomically."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}.tmp")
    with open(draft, "w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, path)
    sync_folder(path.parent)
