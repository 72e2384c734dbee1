"""What to send tensor-parallel messages as, unless a measurement of your own says otherwise.

The numbers are of `results/logged/pareto.csv`: GPT of 125 M parameters on four virtual ranks, runs that start from one
checkpoint at 16.4 M tokens and end at 32.8 M. Chance moves their losses by at most 0.02%, and those of whole runs by
0.9%. A cost is the change of the validation loss, with the errors of the evaluation's own messages.
"""

from __future__ import annotations

from taco.config import ENDS, Policy
from taco.recipes.codecs import policy
from taco.recipes.layers import with_layers

DEFAULT: Policy = policy(tp="int8")
"""1.97 times fewer bytes than bfloat16 at +0.01%, within chance; the paper's codec costs 0.16% at 1.88 times."""

# where int4 messages moved the gradient of a GPT of 12 blocks most after 200 steps without compression (no log of that
# was kept: stage `sensitivity` of the queue measures it again)
GUARDED = {"tp_forward": (ENDS, 0, 1), "tp_backward": (ENDS, 0)}


def guarded(codec: str, by: str = "int8") -> Policy:
    """`codec` but for the messages in which an error moved the gradient most, which have the preset `by`: the
    embedding's sum and the first two blocks forward, the head's gradient and the first block backward.

    `guarded("int6")` sends 2.48 times fewer bytes at 12 blocks (2.54 at 24, computed) and costs 0.03% (one seed), where
    `int6` alone sends 2.61 times fewer and costs 0.19%. For a model of a single block, or of another kind, measure what
    needs bits (`train.sensitivity`, `protected`). Raises `ConfigError` for an unknown name or two equal ones.
    """
    return with_layers(policy(tp=codec), GUARDED, by)
