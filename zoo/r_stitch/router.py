"""R-Stitch's routers: two models that switch on their own entropy, each by the same threshold."""
from __future__ import annotations

from collections.abc import Mapping

import torch

from tokenrouter.interface import Param
from zoo.entropy.router import EntropySmall, normalised_entropy
from zoo.threshold import Tensors, ThresholdRouter

# Declared once for both models: `never` keeps a request at the small one, `always` at the large one.
PARAMS = (Param("threshold", 0.03, 0.0, 1.0, "entropy over ln V above which the large model writes, up to which it "
                "hands back", sends="above"),)


class RStitchSmall(EntropySmall):
    """Leaves where its entropy exceeds `threshold`; the uncertain proposal is discarded and the large model writes."""

    params = PARAMS


class RStitchLarge(ThresholdRouter):
    """Writes on until its entropy is at most `threshold`; that token is kept, and the small model goes on from it.

    Were it discarded, as the paper's Figure 3 says literally, the small model would be as uncertain as before at the
    same position and hand it back, without end.
    """

    params = PARAMS
    handoff = "keep"
    leaves = "<="

    def score(self, tensors: Tensors, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return normalised_entropy(tensors.logits)
