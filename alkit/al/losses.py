"""Losses of AL layers beside torch's own: contrasts of the bridge's output with label codes.

Mean squared error asks the bridge to hit a point; when codes of different classes lie near each
other, as those of an untrained label encoder do, the error is small before anything is learned.
A contrast asks which class's code is nearest, and does not fade with the distance between codes.

B batch, C classes, K width of the code.
"""

import torch.nn.functional as F
from torch import Tensor

from alkit.al.codes import Codes, class_codes


class Contrast:
    """Cross-entropy over similarities between the bridge's output and the codes of all classes.

    Similarity is scale x cosine, or the plain product with `cosine=False`. Called with (m, target):
    m (B, K), target `Codes` or rows (B, K), whose distinct rows then count as the classes.

    Args:
        scale: factor of the similarities, the inverse of a temperature.
        smoothing: label smoothing, the share of the target spread over all classes.
        centred: take the mean of all classes' codes off first. Learned codes begin with most of
            their length in common, which no bridge can tell classes by.
    """

    takes_codes = True  # give it Codes where there are any, not a gathered row a sample

    def __init__(
        self,
        scale: float = 10.0,
        *,
        cosine: bool = True,
        smoothing: float = 0.0,
        centred: bool = False,
    ) -> None:
        self.scale, self.cosine, self.smoothing = scale, cosine, smoothing
        self.centred = centred

    def __call__(self, m: Tensor, target: Tensor | Codes) -> Tensor:
        """Return the mean over the batch, a scalar."""
        codes = class_codes(target)
        scores_BC = self.scores(m, codes.rows)
        return F.cross_entropy(scores_BC, codes.index, label_smoothing=self.smoothing)

    def scores(self, m: Tensor, rows: Tensor) -> Tensor:
        """Return the similarities (B, C) of m (B, K) with the codes of all classes, rows (C, K)."""
        if self.centred:
            rows = rows - rows.mean(0)
        if self.cosine:
            m, rows = F.normalize(m, dim=1), F.normalize(rows, dim=1)
        return self.scale * (m @ rows.T)

    def __repr__(self) -> str:
        kind = "cosine" if self.cosine else "product"
        centred = ", centred" if self.centred else ""
        return f"Contrast(scale={self.scale}, {kind}{centred}, smoothing={self.smoothing})"


def plain_target(loss: object, target: Tensor | Codes) -> Tensor | Codes:
    """Return `target` in the form that `loss` takes: `Codes` as they are, or a row a sample."""
    if isinstance(target, Codes) and not takes_codes(loss):
        return target.gathered()
    return target


def takes_codes(loss: object) -> bool:
    """Say whether a loss wants the codes of all classes, `Codes`, instead of a row a sample."""
    return getattr(loss, "takes_codes", False)


def constant_prediction_loss(num_classes: int) -> float:
    """Return the MSE of predicting 1/C for every class of a one-hot label: (1/C)(1 - 1/C).

    It is where a level-1 label autoencoder sits that has learned nothing but the class frequency.
    """
    if num_classes < 2:
        raise ValueError(f"{num_classes} classes: give 2 or more")
    return (1 - 1 / num_classes) / num_classes
