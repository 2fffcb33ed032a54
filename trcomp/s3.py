"""A place in S3, out of ``s3://bucket/prefix``; what is wrong with a text that names none."""

from __future__ import annotations

import re
from dataclasses import dataclass

SCHEME = "s3://"
# docs.aws.amazon.com/AmazonS3/latest/userguide, "General purpose bucket naming rules".
_BUCKET = re.compile(r"(?!.*\.\.)(?!\d+\.\d+\.\d+\.\d+$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()/=+:@,-]*")
_LONGEST_PREFIX = 512
"""S3 takes keys of 1,024 bytes; what is stored under the prefix has names of its own."""


@dataclass(frozen=True)
class Place:
    """A bucket and a prefix in it, without slashes at its ends."""

    bucket: str
    prefix: str = ""

    def key(self, name: str) -> str:
        """The key of what is stored under the prefix by this name."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def __truediv__(self, name: str) -> Place:
        return Place(self.bucket, self.key(name))

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/")


def is_url(text: object) -> bool:
    """Whether a text is meant as a place in S3."""
    return isinstance(text, str) and text.startswith(SCHEME)


def place(url: str) -> Place:
    """The place that a URL without `faults` names."""
    bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
    return Place(bucket, prefix.strip("/"))


def faults(url: str) -> list[str]:
    """Everything wrong with an ``s3://`` URL, each as a sentence on what is allowed."""
    bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
    found = []
    if _BUCKET.fullmatch(bucket) is None:
        found.append(
            "a bucket's name has 3 to 63 lowercase letters, digits, dots and hyphens, and a letter "
            "or digit at both ends."
        )
    if _PREFIX.fullmatch(prefix) is None:
        found.append("a prefix has letters, digits and any of !_.*'()/=+:@,-")
    if {".", "..", ""} & set(prefix.strip("/").split("/")) and prefix.strip("/"):
        found.append("no part of a prefix is empty, '.' or '..'.")
    if len(prefix) > _LONGEST_PREFIX:
        found.append(f"a prefix has at most {_LONGEST_PREFIX} characters.")
    return found
