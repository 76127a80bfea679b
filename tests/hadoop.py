"""Hadoop's own cluster for tests, of HDFS and YARN: two nodes in one process."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_program import PROGRAMS, SPARK_HOME

_JARS = Path(__file__).resolve().parent.parent / "build" / "hadoop"
_JAVA = str(Path(os.environ.get("JAVA_HOME", "/usr/lib/jvm/default-java")) / "bin" / "java")
_SECONDS = 300


@contextmanager
def hadoop_cluster(directory: Path) -> Iterator[dict[str, str]]:
    """Runs a cluster that writes to an empty directory. Yields the environment of those that use it."""
    assert list(_JARS.glob("*.jar")), f"{_JARS} has no jars: run `gradle hadoop`"
    command = [_JAVA, "-Xmx1g", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
    command += ["-cp", f"{SPARK_HOME}/jars/*:{_JARS}/*", str(PROGRAMS / "HadoopCluster.java"), str(directory)]
    log = directory / "log"
    with (
        log.open("w") as output,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output) as cluster,
    ):
        try:
            wait(lambda: "\nup\n" in log.read_text() or cluster.poll() is not None, _SECONDS)
            assert cluster.poll() is None, log.read_text()[-6000:]
            yield {**os.environ, "HADOOP_CONF_DIR": str(directory / "conf"), "SPARK_LOCAL_IP": "127.0.0.1"}
        finally:
            assert cluster.stdin is not None
            cluster.stdin.close()
            cluster.wait(_SECONDS)


def on_hdfs(hadoop: dict[str, str], *arguments: str) -> str:
    """What a command of Hadoop's file system shell prints."""
    path = f"{hadoop['HADOOP_CONF_DIR']}:{SPARK_HOME}/jars/*"
    command = [_JAVA, "-cp", path, "org.apache.hadoop.fs.FsShell", *arguments]
    # An archive of classes for another class path is warned of on the output.
    plain = {name: value for name, value in hadoop.items() if name != "JDK_JAVA_OPTIONS"}
    done = subprocess.run(command, env=plain, check=True, capture_output=True, text=True, timeout=_SECONDS)
    return done.stdout


def wait(is_so: Callable[[], object], seconds: float) -> None:
    """Waits until something is so; fails the test where it never is."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(0.2)
