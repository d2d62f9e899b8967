"""Every face of the store can do what the others can."""

import inspect
from typing import Any

import pytest

from moonpool.client import GetSession, MemoryStore, PutSession, Store, StoreClient, SyncStoreClient
from moonpool.client.blocks import BlockStore
from moonpool.client.sync_blocks import SyncBlockStore, SyncGetSession, SyncPutSession

OPENS = {"connect", "calls", "mesh"}  # how one comes by it, and its insides


def methods(face: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in inspect.getmembers(face)
        if not name.startswith("_") and name not in OPENS
    }


def parameters(method: Any) -> list[tuple[str, object, object]]:
    signature = inspect.signature(method)
    return [(p.name, p.kind, p.default) for p in signature.parameters.values()]


@pytest.mark.parametrize(
    ("face", "other"),
    [
        (StoreClient, SyncStoreClient),
        (BlockStore, SyncBlockStore),
        (PutSession, SyncPutSession),
        (GetSession, SyncGetSession),
        (Store, MemoryStore),
        (Store, StoreClient),
    ],
)
def test_what_one_face_takes_the_other_takes_alike(face: type, other: type) -> None:
    there = methods(other)
    for name, method in methods(face).items():
        assert name in there, f"{other.__name__} has no {name}"
        if callable(method):
            assert parameters(method) == parameters(there[name]), name
