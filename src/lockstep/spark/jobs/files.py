"""The files of an archive, through Hadoop's file systems: a local folder, HDFS, or an object store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.errors import JobFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class StoredFile:
    path: str
    """Relative to the archive."""
    bytes: int


class ArchiveFolder:
    """The contents of one location. Paths are relative to it, in the form of the file system."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._jvm: Any = spark._jvm
        root = self._path(location)
        self._system: Any = root.getFileSystem(spark._jsc.hadoopConfiguration())
        self._root: Any = self._system.makeQualified(root)
        self.location = str(self._root.toString())
        """Includes the scheme, so that a folder has the same name wherever a job is started."""

    def full(self, path: str) -> str:
        return f"{self.location}/{path}"

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._path(self.full(path))))

    def parquet(self, folder: str) -> Iterator[StoredFile]:
        """The Parquet files under a folder."""
        found = self._system.listFiles(self._path(self.full(folder)), True)
        while found.hasNext():
            status = found.next()
            path = str(status.getPath().toString())
            if path.endswith(".parquet"):
                yield StoredFile(path.removeprefix(f"{self.location}/"), int(status.getLen()))

    def move(self, source: str, target: str) -> None:
        place = self._path(self.full(target))
        self._system.mkdirs(place.getParent())
        if not self._system.rename(self._path(self.full(source)), place):
            raise JobFailed(f"{self.full(source)} could not be moved to {self.full(target)}")

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its contents; does nothing if it does not exist."""
        self._system.delete(self._path(self.full(path)), True)

    def _path(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)
