"""What the engine calls at each layer of a step, on its own thread."""

from collections.abc import Sequence as Run

from moonpool.instance.layers import LayersArrived, LayersMade

LAYER_TIMEOUT_S = 15.0  # beyond every deadline of a fetch: a failure of ours, not of a peer


class StepHooks:
    """Waits for reused layers before attention reads them; tells when new ones are made."""

    def __init__(self, arriving: Run[LayersArrived], made: LayersMade) -> None:
        self._arriving = arriving
        self._made = made

    def before_layer(self, layer: int) -> None:
        for each in self._arriving:
            each.wait(layer, LAYER_TIMEOUT_S)

    def after_layer(self, layer: int) -> None:
        self._made.made(layer)
