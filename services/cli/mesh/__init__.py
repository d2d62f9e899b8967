"""Starts and stops a whole mesh on this machine; used by `moonpool up`, tests and benchmarks.

It knows services by their command lines and heartbeats alone, and never imports one.
"""

from services.cli.mesh.child import Child
from services.cli.mesh.errors import MachineTooSmall, MeshRefused, ServiceFailed
from services.cli.mesh.local import LocalMesh
from services.cli.mesh.shape import DEFAULT_MODEL, MeshShape
from services.cli.mesh.state import MeshRecord, StateFolder, default_state_dir

__all__ = [
    "DEFAULT_MODEL",
    "Child",
    "LocalMesh",
    "MachineTooSmall",
    "MeshRecord",
    "MeshRefused",
    "MeshShape",
    "ServiceFailed",
    "StateFolder",
    "default_state_dir",
]
