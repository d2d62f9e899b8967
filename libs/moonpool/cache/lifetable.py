"""How worthwhile is it to keep a block? Learned on line, from how long blocks of its class waited
for their next use.

An *episode* begins with a use of a block and ends with the next one. Blocks still waiting, or
forgotten, count too, as having waited at least so long (right-censored): a table of those that came
back alone would take every block for a returner. For each class and age the table gives

    G(age) = max over horizons h of  P(reuse within h | waited age) / E[time kept, at most h]

the best rate of reuses per second of keeping that can be had from now on: who has the least goes
first. Ages fall into bins of geometric width; old statistics fade, thin ones lean on those of
the class's family, and these on all together.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LifeTableShape:
    """Round numbers, the same for any traffic."""

    horizon_s: float = 7200.0  # a wait longer than that is not followed up
    first_edge_s: float = 1.0
    edge_ratio: float = 1.3
    slice_s: float = 5.0  # the beginnings of open episodes are remembered with this grain
    fade: float = 0.99  # of closed episodes, at each refit
    smooth_rounds: int = 3  # each mixes a bin with its neighbours
    family_blocks: float = 1000.0  # a family's word weighs as so many blocks of the class
    all_blocks: float = 1000.0  # and all together as so many blocks of a family


class LifeTable:
    """Classes are numbers in `range(len(families))`; `families[c]` is the family of class c."""

    def __init__(self, families: list[int], shape: LifeTableShape | None = None) -> None:
        self.shape = shape or LifeTableShape()
        edges = [0.0, self.shape.first_edge_s]
        while edges[-1] < self.shape.horizon_s:
            edges.append(edges[-1] * self.shape.edge_ratio)
        self.edges_s = edges[1:-1]  # inner edges: bisect_right gives the bin of an age
        self.gains: list[list[float]] = [[0.0] * (len(edges) - 1) for _ in families]  # [class][bin]
        self._starts = np.array(edges)  # outer edges too, [bins + 1]
        self._widths = np.diff(self._starts)  # seconds, [bins]
        kinds = max(families) + 1
        self._family = np.array(families)
        self._in_family = np.zeros((kinds, len(families)))
        self._in_family[self._family, np.arange(len(families))] = 1.0
        bins = len(self._widths)
        self._reused = np.zeros((len(families), bins))  # closed episodes, faded
        self._rates = np.zeros((len(families), bins))  # reuses per second, as of the last refit
        self._slices = int(self.shape.horizon_s / self.shape.slice_s)
        # Open episodes by the slice they began in, slices modulo _slices.
        self._open = np.zeros((len(families), self._slices))
        self._newest = -1  # the last slice begun; the window is (_newest - _slices, _newest]
        self._begun: tuple[list[int], list[float]] = ([], [])  # since the last refit: class, when
        self._ended: tuple[list[int], list[float], list[float]] = ([], [], [])  # class, from, to

    def begin(self, kind: int, now_s: float) -> None:
        """A block of class `kind` was used."""
        self._begun[0].append(kind)
        self._begun[1].append(now_s)

    def end(self, kind: int, began_s: float, now_s: float) -> None:
        """And is used again now; `kind` and `began_s` as they were given to `begin`."""
        self._ended[0].append(kind)
        self._ended[1].append(began_s)
        self._ended[2].append(now_s)

    def refit(self, now_s: float) -> None:
        """Takes in what happened since the last time and renews `gains`."""
        self._advance(now_s)
        self._take_in()
        events, exposure = self._reused.copy(), self._exposure(now_s)
        for _ in range(self.shape.smooth_rounds):
            events, exposure = _blur(events), _blur(exposure)
        self._rates = self._hazard(events, exposure)
        self.gains = _gains(self._rates, self._widths).tolist()
        self._reused *= self.shape.fade

    def chance(self, kind: int, age_s: float, within_s: float) -> float:
        """Probability that a block of class `kind` unused for `age_s` is used in the `within_s`
        to come, as of the last refit."""
        starts = self._starts
        inside = np.minimum(starts[1:], age_s + within_s) - np.maximum(starts[:-1], age_s)
        return float(-np.expm1(-(self._rates[kind] * np.maximum(inside, 0.0)).sum()))

    # --- inside ---

    def _advance(self, now_s: float) -> None:
        """Clears the slices that the window enters; what began in them is beyond the horizon."""
        newest = int(now_s / self.shape.slice_s)
        first = max(self._newest + 1, newest - self._slices + 1)
        if first <= newest:
            self._open[:, np.arange(first, newest + 1) % self._slices] = 0
            self._newest = newest

    def _take_in(self) -> None:
        kinds, began = np.array(self._begun[0], dtype=np.int64), np.array(self._begun[1])
        self._count_open(kinds, began, +1.0)
        kinds, began = np.array(self._ended[0], dtype=np.int64), np.array(self._ended[1])
        ages = np.array(self._ended[2]) - began
        self._count_open(kinds, began, -1.0)
        known = ages < self.shape.horizon_s
        np.add.at(self._reused, (kinds[known], self._bins(ages[known])), 1.0)
        self._begun, self._ended = ([], []), ([], [], [])

    def _count_open(self, kinds: Ints, began_s: Floats, step: float) -> None:
        at = (began_s / self.shape.slice_s).astype(np.int64)
        inside = (at > self._newest - self._slices) & (at <= self._newest)
        np.add.at(self._open, (kinds[inside], at[inside] % self._slices), step)

    def _bins(self, ages_s: Floats) -> Ints:
        return np.searchsorted(np.array(self.edges_s), ages_s, side="right").astype(np.int64)

    def _exposure(self, now_s: float) -> Floats:
        """Block-seconds spent waiting, [classes, bins]: of closed and of open episodes."""
        numbers = np.arange(self._newest, self._newest - self._slices, -1)
        ages = np.maximum(now_s - (numbers + 0.5) * self.shape.slice_s, 0.0)  # ascending
        younger = np.zeros((len(self._open), self._slices + 1))  # open episodes, [classes, slices]
        np.cumsum(self._open[:, numbers % self._slices], axis=1, out=younger[:, 1:])
        waiting = np.diff(younger[:, np.searchsorted(ages, self._starts)], axis=1)
        ending = self._reused + waiting
        outliving = np.flip(np.cumsum(np.flip(ending, axis=1), axis=1), axis=1) - ending
        exposure: Floats = (outliving + 0.5 * ending) * self._widths
        return exposure

    def _hazard(self, events: Floats, exposure: Floats) -> Floats:
        """Reuses per second of waiting, [classes, bins]; thin statistics lean on the family's."""
        prior = self.shape.all_blocks * self._widths
        whole = events.sum(axis=0) / np.maximum(exposure.sum(axis=0), 1e-9)
        family = (self._in_family @ events + whole * prior) / (self._in_family @ exposure + prior)
        prior = self.shape.family_blocks * self._widths
        hazard: Floats = (events + family[self._family] * prior) / (exposure + prior)
        return hazard


def _blur(values: Floats) -> Floats:
    """Each bin half itself, a quarter each neighbour; at the ends itself instead."""
    left = np.concatenate([values[:, :1], values[:, :-1]], axis=1)
    right = np.concatenate([values[:, 1:], values[:, -1:]], axis=1)
    blurred: Floats = 0.5 * values + 0.25 * (left + right)
    return blurred


def _gains(hazard: Floats, widths: Floats) -> Floats:
    """G per class and age bin. Horizons end at bins' ends; an age stands in its bin's middle."""
    classes, bins = hazard.shape
    best = np.zeros((classes, bins))
    waiting = np.ones((classes, bins))  # P(not reused yet | start bin), one column per start
    reused, kept_s = np.zeros((classes, bins)), np.zeros((classes, bins))
    for at in range(bins):
        rate = hazard[:, at : at + 1]
        span = np.full(at + 1, widths[at])  # starts 0..at; the last one has half its bin left
        span[at] *= 0.5
        leaves = -np.expm1(-rate * span)
        stay = np.where(rate > 1e-12, leaves / np.maximum(rate, 1e-12), span)
        upto = slice(0, at + 1)
        reused[:, upto] += waiting[:, upto] * leaves
        kept_s[:, upto] += waiting[:, upto] * stay
        waiting[:, upto] *= 1.0 - leaves
        best[:, upto] = np.maximum(best[:, upto], reused[:, upto] / kept_s[:, upto])
    return best
