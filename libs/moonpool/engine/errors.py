"""What can go wrong with a model.

CallerError
├── ModelNotFound      no such folder or id, or it cannot be fetched from here
├── UnsupportedModel   it exists, but this engine cannot run it over a paged pool
└── BadStep            a step names blocks or positions that do not exist
CorruptionError
└── ModelDamaged       a fetched file is not the one that was published
"""

from moonpool.messages.errors import CallerError, CorruptionError


class ModelNotFound(CallerError):
    """The text says where we looked and what to do."""

    code = "model_not_found"


class UnsupportedModel(CallerError):
    """The text says what the model has that this engine cannot serve."""

    code = "unsupported_model"


class BadStep(CallerError):
    """A piece does not fit its block table, the pool or the model."""

    code = "bad_step"


class ModelDamaged(CorruptionError):
    """A downloaded or converted file differs from its digest."""

    code = "model_damaged"
