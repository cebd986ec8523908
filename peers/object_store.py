"""An object store that speaks S3's protocol, as a process of its own: moto's server.

It knows one key, and refuses others as S3 does.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import boto3
import pyarrow.fs

BUCKET = "telemetry"
STARTED_WITHIN_S = 60.0
POLL_AFTER_S = 0.1
EVERYTHING = {"Effect": "Allow", "Action": "*", "Resource": "*"}
UNCHECKED_CALLS = 4  # those below, before keys count


@dataclass(frozen=True, slots=True)
class ObjectStore:
    endpoint: str
    access_key: str
    secret_key: str

    def settings(self, **changes: str) -> dict[str, str]:
        """Hadoop's, for s3a:."""
        return {
            "fs.s3a.endpoint": self.endpoint,
            "fs.s3a.access.key": self.access_key,
            "fs.s3a.secret.key": self.secret_key,
            "fs.s3a.path.style.access": "true",
        } | {f"fs.s3a.{name.replace('_', '.')}": value for name, value in changes.items()}

    def files(self) -> pyarrow.fs.S3FileSystem:
        return pyarrow.fs.S3FileSystem(
            access_key=self.access_key,
            secret_key=self.secret_key,
            endpoint_override=self.endpoint,
            region="us-east-1",
        )

    def upload(self, folder: Path, name: str) -> str:
        """The folder's URL there."""
        pyarrow.fs.copy_files(
            str(folder), f"{BUCKET}/{name}", destination_filesystem=self.files(), use_threads=False
        )
        return f"s3a://{BUCKET}/{name}"


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(  # noqa: S603 - ours
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"INITIAL_NO_AUTH_ACTION_COUNT": str(UNCHECKED_CALLS)},
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _await_answer(process, f"{endpoint}/moto-api/")
        yield _with_a_key(endpoint)
    finally:
        process.kill()
        process.wait()


def _await_answer(process: subprocess.Popen[bytes], url: str) -> None:
    deadline_s = time.monotonic() + STARTED_WITHIN_S
    while True:
        assert process.poll() is None, "moto ended"
        try:
            urlopen(url, timeout=5).close()  # noqa: S310 - ours
        except (URLError, OSError):
            assert time.monotonic() < deadline_s, "moto does not answer"
            time.sleep(POLL_AFTER_S)
        else:
            return


def _with_a_key(endpoint: str) -> ObjectStore:
    options = {"endpoint_url": endpoint, "region_name": "us-east-1"}
    anybody = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
    users = boto3.client("iam", **options, **anybody)
    policy = json.dumps({"Version": "2012-10-17", "Statement": [EVERYTHING]})
    users.create_user(UserName="pipeline")
    users.put_user_policy(UserName="pipeline", PolicyName="all", PolicyDocument=policy)
    key = users.create_access_key(UserName="pipeline")["AccessKey"]
    boto3.client("s3", **options, **anybody).create_bucket(Bucket=BUCKET)
    return ObjectStore(endpoint, key["AccessKeyId"], key["SecretAccessKey"])
