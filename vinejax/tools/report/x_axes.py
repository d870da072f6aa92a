"""Charts of metrics over the eighths of a response, in the first, a middle and the last iteration.

The charts show in which part of the response the policy is uncertain, updates are clipped, or the
sampler's and the scorer's log-probabilities differ.
"""

from vinejax.records.read import Record
from vinejax.tools.report import curves

MIN_ITERATIONS = 3  # so that three different iterations can be shown
STYLES = ("second", "pass-2", "main")
TITLES = {
    "entropy": ("Entropy along the response", "nats per token, by eighth of the response"),
    "ratio": ("Ratio along the response", "of the policy to the one that sampled, mean"),
    "clip_frac": ("Clip fraction along the response", "share of tokens that are clipped"),
    "logprob_diff": (
        "Sampler against scorer along the response",
        "mean difference of a token’s log-probability",
    ),
}
LOGARITHMIC = ("logprob_diff",)


def charts_along(records: list[Record]) -> list[curves.Chart]:
    """A chart for each logged metric of TITLES; [] for fewer than MIN_ITERATIONS iterations."""
    trained = [record for record in records if record.stage == "train"]
    if len(trained) < MIN_ITERATIONS:
        return []
    chosen = [trained[0], trained[len(trained) // 2], trained[-1]]
    charts = (_chart(name, chosen) for name in TITLES)
    return [chart for chart in charts if chart is not None]


def _chart(name: str, records: list[Record]) -> curves.Chart | None:
    """A chart of metric `name` over the eighths, with a curve for each of the records."""
    labels = [f"iteration {record.position}" for record in records]
    title, note = TITLES[name]
    spec = curves.ChartSpec(
        title,
        tuple(
            curves.Curve(label, label, style) for label, style in zip(labels, STYLES, strict=True)
        ),
        note,
        log=name in LOGARITHMIC,
        floor=None if name == "ratio" else 0.0,
        x_label="eighth",
    )
    points = []
    for n in range(1, 9):
        key = f"by_eighth/{name}/{n}"
        values = {
            label: record.values[key]
            for label, record in zip(labels, records, strict=True)
            if key in record.values
        }
        points.append(Record("train", n, values))
    return curves.draw_chart(spec, points)
