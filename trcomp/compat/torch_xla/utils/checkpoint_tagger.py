"""`CheckpointTagger`: names for checkpoints, such as best; one without a name is removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


class CheckpointTagger:
    """Which checkpoint each tag stands for.

    Args:
        remover: Called with the path of a checkpoint that no tag stands for any more.
    """

    def __init__(self, remover: Callable[[str], Any] | None = None) -> None:
        self._tags: dict[str, str] = {}
        self._remover = remover

    @property
    def tags(self) -> dict[str, str]:
        """Tag to path."""
        return self._tags

    def tag(self, name: str, path: str) -> None:
        """Let a tag stand for a checkpoint."""
        before = self._tags.get(name)
        self._tags[name] = path
        if before is not None and before not in self._tags.values() and self._remover is not None:
            self._remover(before)

    def save_to_json(self) -> str:
        """The tags as text."""
        return json.dumps(self._tags)

    @classmethod
    def load_from_json(
        cls, str_json: str, remover: Callable[[str], Any] | None = None
    ) -> CheckpointTagger:
        """The tags of a text."""
        tagger = cls(remover)
        tagger._tags.update(json.loads(str_json))
        return tagger
