"""Charts as inline SVG: no scripts, no files from elsewhere, readable on light and dark paper."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape

COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#65a30d")
WIDTH, HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 14, 40
Points = Sequence[tuple[float, float]]


def lines(
    series: Mapping[str, Points],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    y_max: float = 0,
    strong: Collection[str] = (),
) -> str:
    """One line per series, those of `strong` thicker. `log_x`: for values above 0 over several
    decades."""
    points = [point for each in series.values() for point in each]
    if not points:
        return "<p>nothing to show</p>"
    low = max(0.0, min(x for x, _ in points))
    high = max(x for x, _ in points)
    top = y_max or max(y for _, y in points) * 1.05 or 1.0
    if log_x:
        low = max(low, 1e-3)
        high = max(high, low * 10)
    place = _placer(low, max(high, low + 1e-9), log_x)
    body = [_axes(low, high, top, place, log_x, x_label, y_label)]
    for (name, each), colour in zip(series.items(), _colours(), strict=False):
        path = " ".join(f"{place(max(low, x)):.1f},{_y(y, top):.1f}" for x, y in each)
        wide = 3 if name in strong else 1.6
        body.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{wide}" '
            f'stroke-linejoin="round"><title>{escape(name)}</title></polyline>'
        )
    return _svg(WIDTH, HEIGHT, "".join(body)) + legend(list(series))


def bars(values: Mapping[str, float], unit: str) -> str:
    """A horizontal bar per name, in the colour that its lines have elsewhere."""
    top = max(values.values(), default=1.0) or 1.0
    step = min(44.0, (HEIGHT - _TOP) / max(1, len(values)))
    at, body = float(_TOP), []
    for (name, value), colour in zip(values.items(), _colours(), strict=False):
        wide, tall = 310 * value / top, step * 0.62
        middle = at + tall / 2 + 4
        body.append(
            f'<text x="0" y="{middle:.1f}" class="label">{escape(name)}</text>'
            f'<rect x="160" y="{at:.1f}" width="{wide:.1f}" height="{tall:.1f}" rx="2" '
            f'fill="{colour}"/>'
            f'<text x="{166 + wide:.1f}" y="{middle:.1f}" class="tick">{value:.3g} {unit}</text>'
        )
        at += step
    return _svg(WIDTH, at + 4, "".join(body))


def heat(rows: Mapping[str, Sequence[float]], x_label: str) -> str:
    """A row of cells per node: 0 is pale, 1 is full."""
    tall, body = 14, []
    columns = max((len(row) for row in rows.values()), default=1)
    wide = (WIDTH - 60) / max(1, columns)
    for index, (name, row) in enumerate(rows.items()):
        y = index * tall
        body.append(f'<text x="0" y="{y + 11}" class="tick">{escape(name)}</text>')
        for column, value in enumerate(row):
            share = min(1.0, max(0.0, value))
            body.append(
                f'<rect x="{48 + column * wide:.1f}" y="{y}" width="{wide + 0.3:.1f}" '
                f'height="{tall - 2}" fill="#2563eb" fill-opacity="{0.06 + 0.94 * share:.2f}">'
                f"<title>{escape(name)}: {share:.0%}</title></rect>"
            )
    bottom = len(rows) * tall + 16
    body.append(f'<text x="48" y="{bottom - 3}" class="tick">{escape(x_label)}</text>')
    return _svg(WIDTH, bottom, "".join(body))


def legend(names: Sequence[str]) -> str:
    items = "".join(
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in zip(names, _colours(), strict=False)
    )
    return f'<div class="legend">{items}</div>'


def cumulative(values: Sequence[float], points: int = 160) -> list[tuple[float, float]]:
    """(value, share of values up to it), thinned."""
    ordered = sorted(values)
    if not ordered:
        return []
    last = len(ordered) - 1
    picked = sorted({round(last * index / points) for index in range(points + 1)})
    return [(ordered[index], (index + 1) / len(ordered)) for index in picked]


def _colours() -> Sequence[str]:
    return COLOURS * 4


def _placer(low: float, high: float, log_x: bool) -> Callable[[float], float]:
    span = WIDTH - _LEFT - _RIGHT
    if log_x:
        first, last = math.log10(low), math.log10(high)
        return lambda x: _LEFT + span * (math.log10(max(x, low)) - first) / (last - first)
    return lambda x: _LEFT + span * (x - low) / (high - low)


def _y(value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * min(1.0, value / top)


def _axes(
    low: float,
    high: float,
    top: float,
    place: Callable[[float], float],
    log_x: bool,
    x_label: str,
    y_label: str,
) -> str:
    body = []
    for value in round_ticks(0.0, top, 5):
        y = _y(value, top)
        body.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="tick" text-anchor="end">'
            f"{value:.3g}</text>"
        )
    for value in _ticks(low, high, log_x):
        body.append(
            f'<text x="{place(value):.1f}" y="{HEIGHT - _BOTTOM + 16}" class="tick" '
            f'text-anchor="middle">{value:.3g}</text>'
        )
    middle = (_LEFT + WIDTH) / 2
    body.append(
        f'<text x="{middle}" y="{HEIGHT - 6}" class="tick" text-anchor="middle">'
        f"{escape(x_label)}</text>"
        f'<text x="12" y="{HEIGHT / 2}" class="tick" text-anchor="middle" '
        f'transform="rotate(-90 12 {HEIGHT / 2})">{escape(y_label)}</text>'
    )
    return "".join(body)


def _ticks(low: float, high: float, log_x: bool) -> list[float]:
    if not log_x:
        return round_ticks(low, high, 6)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1.0, 3.0) if len(powers) > 3 else (1.0, 2.0, 5.0)
    every = [step * 10.0**power for power in powers for step in steps]
    return [value for value in every if low <= value <= high] or [low, high]


def round_ticks(low: float, high: float, about: int) -> list[float]:
    """Round values within `[low, high]`, about so many."""
    rough = (high - low) / about
    if rough <= 0.0:
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * by for by in (1.0, 2.0, 2.5, 5.0, 10.0) if power * by >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _svg(width: float, height: float, body: str) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img">{body}</svg>'
