"""One object of S3 into a file: a process of its own, which alone loads the AWS SDK."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trcomp import s3


def main(arguments: Sequence[str]) -> int:
    """Fetch ``s3://bucket/key`` into a file.

    Args:
        arguments: The place and the file.

    Returns:
        The exit code: 0, or 69 with a line that says why not.
    """
    uri, target = arguments
    try:
        import boto3
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        print(f"{uri} cannot be fetched: the image lacks boto3.")
        return 69
    place = s3.place(uri)
    try:
        boto3.client("s3").download_file(place.bucket, place.prefix, target)
    except (Boto3Error, BotoCoreError, ClientError) as error:
        print(f"{uri} cannot be fetched: {error}")
        return 69
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
