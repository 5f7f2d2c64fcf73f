# SPDX-License-Identifier: Apache-2.0
"""The names of the layer variants, and what a list of them means.

Invariant: every `Fusion` stands for the same function of the same parameters; variants differ in
which tensors exist in between. Pure Python, so that a wrong name is answered before torch is
imported. Anyone may call it.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import UsageError

BASELINE = "baseline"
AUTO = "auto"
# In the order in which a block meets them; any of them go together.
VARIANTS = (
    "dropout_layernorm",
    "attention_layernorm",
    "attention_projection",
    "ffn_layernorm",
)
NAMES = (BASELINE, *VARIANTS, AUTO)
RECOMPUTE_LEVELS = (0, 1, 2)


@dataclass(frozen=True)
class Fusion:
    """What is fused in each block.

    Attributes:
        dropout_layernorm: Dropout, residual add and the LayerNorm behind them are one kernel.
        attention_layernorm: The first LayerNorm is part of the product to queries, keys, values.
        attention_projection: The output projection behind attention and the residual add are one.
        ffn_layernorm: LayerNorm, feed-forward part and residual add are one op.
        recompute: What `ffn_layernorm` keeps for backward: 0 the inner tensor before and after
            the activation, 1 before alone, 2 neither.
    """

    dropout_layernorm: bool = False
    attention_layernorm: bool = False
    attention_projection: bool = False
    ffn_layernorm: bool = False
    recompute: int = 1

    def __post_init__(self) -> None:
        """Refuse a level that does not exist.

        Raises:
            UsageError: If `recompute` is none of 0, 1 and 2.
        """
        if isinstance(self.recompute, bool) or self.recompute not in RECOMPUTE_LEVELS:
            raise UsageError(f"recompute level {self.recompute!r}", remedy="0, 1 or 2")

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants in it, in the order of `VARIANTS`; none of them is the baseline."""
        return tuple(name for name in VARIANTS if getattr(self, name))

    @property
    def name(self) -> str:
        """The list that `parse` reads as this."""
        return ",".join(self.variants) or BASELINE


def split(names: str, *, what: str = "fusion") -> tuple[str, ...]:
    """The single names of a list, each known, none twice, in the order of `NAMES`.

    Args:
        names: Variants with commas between them, or one of "baseline" and "auto".
        what: What the list is called in an error.

    Raises:
        UsageError: If a name is unknown or said twice, or stands beside "baseline" or "auto".
    """
    words = [word.strip().lower().replace("-", "_") for word in str(names).split(",")]
    for word in words:
        if word not in NAMES:
            raise UsageError(f"{what} '{word}' is unknown", remedy=", ".join(NAMES))
        if words.count(word) > 1:
            raise UsageError(f"{what} '{word}' is named twice", remedy="each variant once")
    alone = {BASELINE, AUTO} & set(words)
    if alone and len(words) > 1:
        raise UsageError(
            f"{what} '{sorted(alone)[0]}' stands alone, but {len(words)} names were given",
            remedy="a list of " + ", ".join(VARIANTS),
        )
    return tuple(name for name in NAMES if name in words)


def parse(names: str, *, recompute: int = 1) -> Fusion:
    """The variants of a list such as ``"attention_layernorm,ffn_layernorm"``.

    Args:
        names: As for `split`, but not "auto", which has to be measured first; see `auto.choose`.
        recompute: What `ffn_layernorm` keeps for backward.

    Raises:
        UsageError: If `split` refuses the list, it is "auto", or the level does not exist.
    """
    words = split(names)
    if words == (AUTO,):
        raise UsageError("'auto' is measured, not named", remedy="penstock.fusion.choose()")
    return Fusion(**{word: True for word in words if word != BASELINE}, recompute=recompute)
