"""The model runner: a loaded model, a paged KV pool, and steps over flattened batches of pieces.

Instances call it from one thread. It never touches the network (but for fetching a model by name)
or an event loop, and nothing outside this folder knows which engine runs. `torch_engine` is not
imported here, so that who only needs names and files does not pay for torch.
"""

import moonpool.engine.waiting  # noqa: F401  first: it must come before torch
from moonpool.engine.base import (
    Engine,
    LayerHooks,
    ModelSpec,
    NoHooks,
    Piece,
    Sampled,
    SampleSpec,
    StepResult,
)
from moonpool.engine.errors import BadStep, ModelDamaged, ModelNotFound, UnsupportedModel
from moonpool.engine.fetch import ModelFiles, resolve_model

__all__ = [
    "BadStep",
    "Engine",
    "LayerHooks",
    "ModelDamaged",
    "ModelFiles",
    "ModelNotFound",
    "ModelSpec",
    "NoHooks",
    "Piece",
    "SampleSpec",
    "Sampled",
    "StepResult",
    "UnsupportedModel",
    "resolve_model",
]
