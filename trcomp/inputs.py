"""Input: one channel of training data, from a place or from an object shaped like TrainingInput."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from trcomp import rules, s3
from trcomp.errors import Problem


class Input(BaseModel):
    """One channel of training data. All but its place means something to SageMaker only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    channel: str
    uri: str
    """``file:///absolute/path`` of a directory or file, or ``s3://bucket/prefix``."""
    content_type: str | None = None
    input_mode: str | None = None
    """``File``, ``FastFile`` or ``Pipe``; None is the job's input_mode."""
    distribution: str = "FullyReplicated"
    """``ShardedByS3Key`` gives each host its part of the objects."""
    s3_data_type: str = "S3Prefix"
    """What uri names: a prefix, or with ``ManifestFile`` a list of objects."""
    compression: str | None = None
    record_wrapping: str | None = None
    shuffle_seed: int | None = None
    """Shuffles the order of objects anew in each epoch."""
    attribute_names: tuple[str, ...] = ()

    @property
    def path(self) -> Path | None:
        """The data's place on this machine, None if it lies elsewhere."""
        return local_path(self.uri)


_FIELDS = {
    "ContentType": "content_type",
    "InputMode": "input_mode",
    "CompressionType": "compression",
    "RecordWrapperType": "record_wrapping",
    "ShuffleConfig.Seed": "shuffle_seed",
    "DataSource.S3DataSource.S3Uri": "uri",
    "DataSource.S3DataSource.S3DataType": "s3_data_type",
    "DataSource.S3DataSource.S3DataDistributionType": "distribution",
    "DataSource.S3DataSource.AttributeNames": "attribute_names",
}
"""SageMaker's fields of a channel, and ours."""


_ATTRIBUTES = {
    "s3_data": "uri",
    **{
        name: name
        for name in (
            "content_type",
            "input_mode",
            "compression",
            "record_wrapping",
            "s3_data_type",
            "distribution",
            "attribute_names",
        )
    },
}
"""The words of sagemaker.inputs.TrainingInput, for an object that keeps them, and ours."""


def to_uri(place: str | Path) -> str:
    """A place as a URI: ``s3://`` stays, a path or ``file://`` becomes ``file:///absolute``."""
    text = str(place)
    if s3.is_url(text):
        return text
    return "file://" + str(Path(text.removeprefix("file://")).expanduser().absolute())


def local_path(uri: str) -> Path | None:
    """The path of a ``file://`` URI; None for any other."""
    return Path(uri.removeprefix("file://")) if uri.startswith("file://") else None


def to_inputs(value: Any) -> tuple[list[Input], list[Problem]]:
    """The channels that `fit` was given, and what is wrong with them.

    Args:
        value: One place or TrainingInput (channel "training"), or a dict of them by channel.
    """
    channels = value if isinstance(value, Mapping) else {"training": value}
    problems = list(rules.channels_problems([str(name) for name in channels]))
    inputs = []
    for name, given in channels.items():
        field = f"inputs[{name!r}]"
        words, found = _words(given, field)
        found = found or rules.place_problems(field, words.get("uri"))
        if not found:
            inputs.append(Input(channel=str(name), **words | {"uri": to_uri(words["uri"])}))
        problems += found
    return inputs, problems


def to_channel(item: Input) -> dict[str, Any]:
    """A channel in SageMaker's form, without what is unset."""
    channel: dict[str, Any] = {"ChannelName": item.channel}
    for path, word in _FIELDS.items():
        value = getattr(item, word)
        if value not in (None, ()):
            put(channel, path, list(value) if isinstance(value, tuple) else value)
    return channel


def put(values: dict[str, Any], path: str, value: object) -> None:
    """Set a value inside objects, by its path such as ``ShuffleConfig.Seed``."""
    *outer, name = path.split(".")
    for part in outer:
        values = values.setdefault(part, {})
    values[name] = value


def _words(given: Any, field: str) -> tuple[dict[str, Any], list[Problem]]:
    """Our words for a place, or for an object shaped like sagemaker.inputs.TrainingInput."""
    config = getattr(given, "config", None)
    if isinstance(config, Mapping):  # SageMaker's form of a channel, which SDK v2's own keeps
        leaves = {path: value for path, value in _leaves(config) if value is not None}
        unknown = [
            Problem(f"{field}.{path}", value, "not supported yet.")
            for path, value in leaves.items()
            if path not in _FIELDS
        ]
        return {_FIELDS[path]: leaves[path] for path in leaves if path in _FIELDS}, unknown
    if hasattr(given, "s3_data"):
        named = {word: getattr(given, name, None) for name, word in _ATTRIBUTES.items()}
        return {word: value for word, value in named.items() if value is not None}, []
    return {"uri": given}, []


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
