"""Folders on this machine and in object stores, read by tasks themselves.

Spark reads s3a: with Hadoop's file system, which only the JVM has. Tasks read the same objects with
Arrow's, with the keys, the endpoint and the region that Spark has: `spark.hadoop.fs.s3a.*`, also
those of single buckets, and core-site.xml. Without keys there, both look in the provider's usual
places: environment variables, profiles, the machine's role.

Any other storage (hdfs:, abfss:, gs:), and keys from a class that Arrow does not have, are Spark's
alone: `SparkOnly`. Tables are then made of DataFrames, with the same results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs
from pyspark.sql import SparkSession

from insync.pipeline.io.columns import BadTables

S3_SCHEMES: Final = ("s3a", "s3", "s3n")
REGION_WITH_ENDPOINT: Final = "us-east-1"  # object stores of others mostly have no regions
CONNECTED_WITHIN_S: Final = 10.0
KNOWN_PROVIDERS: Final = (
    "SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider",
    "EnvironmentVariableCredentialsProvider", "IAMInstanceCredentialsProvider",
    "DefaultCredentialsProvider", "ProfileCredentialsProvider", "ContainerCredentialsProvider",
    "InstanceProfileCredentialsProvider", "WebIdentityTokenFileCredentialsProvider",
    "DefaultAWSCredentialsProviderChain",
)  # fmt: skip
ANONYMOUS: Final = "AnonymousAWSCredentialsProvider"

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_AWS_ERROR: Final = re.compile(r"AWS Error (\w+)")
_REASONS: Final = {
    "NO_SUCH_BUCKET": "there is no such bucket",
    "INVALID_ACCESS_KEY_ID": "the object store does not know the access key",
    "SIGNATURE_DOES_NOT_MATCH": "the secret key is not that of the access key",
    "ACCESS_DENIED": "the object store denies access with these keys",
    "NETWORK_CONNECTION": "the object store does not answer",
}

Setting = Callable[[str], str | None]


class SparkOnly(BadTables):
    """A storage that Spark may read, and tasks cannot."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder, and the file system that has it: both go to the tasks."""

    url: str
    files: pa.fs.FileSystem
    path: str

    @property
    def is_local(self) -> bool:
        return isinstance(self.files, pa.fs.LocalFileSystem)

    def listed(self, table: str) -> dict[str, int]:
        """The sizes of the Parquet files of a table, by name and in order; empty if there are
        none."""
        selector = pa.fs.FileSelector(f"{self.path}/{table}", allow_not_found=True)
        with refused_in_a_line(self.url):
            infos = self.files.get_file_info(selector)
            if not infos and not self.is_local:
                self._check_bucket()
        return {
            info.base_name: info.size
            for info in sorted(infos, key=lambda info: info.base_name)
            if info.type == pa.fs.FileType.File and info.extension == "parquet"
        }

    def _check_bucket(self) -> None:
        bucket = self.path.partition("/")[0]
        if self.files.get_file_info(bucket).type == pa.fs.FileType.NotFound:
            raise BadTables(f"{self.url} cannot be read: {_REASONS['NO_SUCH_BUCKET']}")

    def file(self, table: str, name: str) -> str:
        return f"{self.path}/{table}/{name}"

    def shown(self, table: str, name: str) -> str:
        return f"{self.url}/{table}/{name}"


def is_url(path: str) -> bool:
    """As Hadoop distinguishes URLs from paths: file:/here is one too."""
    return _SCHEME.match(path) is not None


def folder(spark: SparkSession | None, where: str | Path) -> Folder:
    """Without a session, keys and endpoints come from the provider's usual places alone."""
    url = str(where).rstrip("/")
    if not is_url(url):
        path = str(Path(where).absolute())  # workers may have another working directory
        return Folder(path, pa.fs.LocalFileSystem(), path)
    scheme, bucket, path, *_ = urlsplit(url)
    if scheme == "file":
        return Folder(url, pa.fs.LocalFileSystem(), unquote(path).rstrip("/"))
    if scheme not in S3_SCHEMES:
        raise SparkOnly(f"{url}: only Spark reads {scheme}:")
    setting = settings_of_bucket(hadoop_settings(spark), bucket)
    with refused_in_a_line(url):
        return Folder(url, s3_files(setting, bucket), f"{bucket}{path}".rstrip("/"))


@contextmanager
def refused_in_a_line(url: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        code = _AWS_ERROR.search(str(error))
        words = _REASONS.get(code[1]) if code else None
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise BadTables(f"{url} cannot be read: {words or line}") from None


def hadoop_settings(spark: SparkSession | None) -> Setting:
    """Those of the session, core-site.xml included; Spark Connect shows its own alone."""
    if spark is None:
        return lambda _: None
    try:
        java: Any = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    except Exception:  # Spark Connect has another one for everything that it lacks
        return lambda name: spark.conf.get(f"spark.hadoop.{name}", None)

    def of_session(name: str) -> str | None:
        value = java.getPassword(name)  # also from a store of credentials
        return None if value is None else "".join(value)

    return of_session


def settings_of_bucket(setting: Setting, bucket: str) -> Setting:
    def of_bucket(name: str) -> str | None:
        return setting(f"fs.s3a.bucket.{bucket}.{name}") or setting(f"fs.s3a.{name}") or None

    return of_bucket


def s3_files(setting: Setting, bucket: str) -> pa.fs.S3FileSystem:
    """Arrow's file system for what `fs.s3a.*` says."""
    providers = [each.strip() for each in (setting("aws.credentials.provider") or "").split(",")]
    names = [each.rsplit(".", 1)[-1] for each in providers if each]
    others = [name for name in names if name not in {*KNOWN_PROVIDERS, ANONYMOUS}]
    if others:
        raise SparkOnly(f"s3a://{bucket}: only Spark has the credentials of {', '.join(others)}")
    if setting("proxy.host"):
        raise SparkOnly(f"s3a://{bucket}: only Spark goes through the proxy")
    options: dict[str, Any] = {"connect_timeout": CONNECTED_WITHIN_S}
    if names == [ANONYMOUS]:
        options["anonymous"] = True
    elif setting("access.key"):
        keys = ("access.key", "secret.key", "session.token")
        options |= {name.replace(".", "_"): setting(name) for name in keys}
    endpoint, region = setting("endpoint"), setting("endpoint.region")
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        is_plain = setting("connection.ssl.enabled") == "false"
        options["scheme"] = scheme or ("http" if is_plain else "https")
        options["endpoint_override"] = host
        options["force_virtual_addressing"] = setting("path.style.access") == "false"
        region = region or REGION_WITH_ENDPOINT
    return pa.fs.S3FileSystem(region=region or pa.fs.resolve_s3_region(bucket), **options)
