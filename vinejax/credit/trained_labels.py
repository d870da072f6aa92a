"""The labels of a credit that are trained on, and their scale."""

import numpy as np

from vinejax.core.shapes import label_width
from vinejax.core.types import Labels


def trained_labels(labels: Labels, mask: np.ndarray) -> Labels:
    """Those labels that stand beside trained tokens and have a coefficient other than 0.

    `mask`, bool[B, T], are the trained tokens.
    """
    rows = np.arange(len(mask))[:, None]
    is_trained = mask[rows, labels.position] & (labels.coefficients != 0)  # padding has 0
    width = label_width(int(is_trained.sum(axis=1).max(initial=0)), mask.shape[1])
    chosen = np.argsort(~is_trained, axis=1, kind="stable")[:, :width]

    def kept(x: np.ndarray) -> np.ndarray:
        return np.take_along_axis(np.where(is_trained, x, 0).astype(x.dtype), chosen, axis=1)

    return Labels(*(None if x is None else kept(x) for x in labels))


def scaled(advantages: np.ndarray, mask: np.ndarray, labels: Labels) -> tuple[np.ndarray, Labels]:
    """Advantages and coefficients of labels, divided by one number.

        x / √(Σ x² / n + 1e-8)    Σ: over trained tokens and labels    n: number of trained tokens

    Whitening would also subtract a mean. Then the coefficients of a position at which all samples
    agree would no longer cancel. Advantages outside the `mask` become 0.
    """
    used = np.where(mask, advantages, 0).astype(np.float64)
    total = np.sum(used**2) + np.sum(np.float64(labels.coefficients) ** 2)
    scale = np.sqrt(total / max(np.count_nonzero(mask), 1) + 1e-8)
    coefficients = (labels.coefficients / scale).astype(np.float32)
    return (used / scale).astype(np.float32), labels._replace(coefficients=coefficients)
