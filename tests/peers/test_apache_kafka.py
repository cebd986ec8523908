from __future__ import annotations

import sys
from pathlib import Path

import pytest

from peers import apache_kafka
from peers.apache_kafka import ApacheKafka, PeerUnavailable, classpath, java_tool


@pytest.fixture(autouse=True)
def nothing_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apache_kafka, "CACHE", tmp_path / ".peers")
    classpath.cache_clear()


def program(folder: Path, name: str, *lines: str) -> None:
    """A stand-in for a program of this machine, written in Python."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text("\n".join([f"#!{sys.executable}", "import sys", *lines]))
    script.chmod(0o755)


def maven(folder: Path, *, finds: Path) -> None:
    """Resolves one jar, and counts its runs."""
    program(
        folder,
        "mvn",
        "target = sys.argv[-1].removeprefix('-Dmdep.outputFile=')",
        f"open(target, 'w').write({str(finds)!r})",
        f"open({str(folder / 'runs')!r}, 'a').write('x')",
    )


@pytest.mark.parametrize("missing", ["java", "mvn"])
def test_missing_programs_are_named(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "bin"
    program(here, "mvn" if missing == "java" else "java")
    monkeypatch.setenv("PATH", str(here))
    with pytest.raises(PeerUnavailable, match=f"needs {missing}"):
        ApacheKafka()


def test_a_failed_resolution_reports_mavens_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "bin"
    program(here, "java")
    program(here, "mvn", "print('[ERROR] no such jar')", "sys.exit(1)")
    monkeypatch.setenv("PATH", str(here))
    with pytest.raises(PeerUnavailable, match="no such jar"):
        classpath()
    assert list((tmp_path / ".peers").iterdir()) == [], "a failure leaves nothing to be believed"


def test_maven_runs_once_and_again_when_a_jar_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, jar = tmp_path / "bin", tmp_path / "kafka.jar"
    jar.touch()
    program(here, "java")
    maven(here, finds=jar)
    monkeypatch.setenv("PATH", str(here))
    assert str(jar) in java_tool("kafka.Kafka")
    classpath.cache_clear()
    assert classpath() == str(jar)
    assert (here / "runs").read_text() == "x"
    jar.unlink()
    classpath.cache_clear()
    classpath()
    assert (here / "runs").read_text() == "xx"
