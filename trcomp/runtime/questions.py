"""Questions between ranks: a thread of each hears them, so that whoever is asked may be busy."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any

import jax

_LISTENING_SECONDS = 20


def ask(store: Any, peer: int, question: str) -> None:
    """Ask another rank; its answer is left in the store."""
    number = store.key_value_increment(f"trcomp/asked/{peer}", 1)
    store.key_value_set(f"trcomp/asked/{peer}/{number}", question)


def listen(store: Any, rank: int, answer: Callable[[str], None]) -> None:
    """Have questions to this rank answered from now on.

    Args:
        store: The ranks' key-value store.
        rank: This one.
        answer: Called with each question, in a thread of its own.
    """
    thread = threading.Thread(
        target=_listen, args=(store, rank, answer), name="trcomp-questions", daemon=True
    )
    thread.start()
    # It must not wait for the store when that goes.
    atexit.register(_end, thread, store, rank)


_NO_MORE = "no more"


def _listen(store: Any, rank: int, answer: Callable[[str], None]) -> None:
    number = 1
    while True:
        try:
            question = store.blocking_key_value_get(
                f"trcomp/asked/{rank}/{number}", _LISTENING_SECONDS * 1000
            )
            if question == _NO_MORE:
                return
            answer(question)
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                return  # The store is gone; whoever needs it will say so.
            continue
        number += 1


def _end(thread: threading.Thread, store: Any, rank: int) -> None:
    try:
        ask(store, rank, _NO_MORE)
    except jax.errors.JaxRuntimeError:
        return
    thread.join(_LISTENING_SECONDS)
