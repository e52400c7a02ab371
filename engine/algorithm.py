"""The parts of a recipe that say how rewards become a gradient: names, coefficients and bounds.

What a part means stands with the function that takes it: engine/advantage.py, engine/policy_loss.py,
engine/loss.py, engine/kl_reward.py, engine/correction.py, engine/gather.py, engine/reward.py. Loads no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

KlEstimator = Literal["k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+"]
AggregationMode = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
]
Estimator = Literal[
    "gae",
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
]
PolicyLossName = Literal[
    "vanilla",
    "gspo",
    "sapo",
    "gpg",
    "cispo",
    "dppo_tv",
    "dppo_kl",
    "dro",
    "geo_mean",
    "kl_cov",
    "clip_cov",
]
RejectionStatistic = Literal[
    "token_k1",
    "token_k2",
    "token_k3",
    "seq_sum_k1",
    "seq_sum_k2",
    "seq_sum_k3",
    "seq_mean_k1",
    "seq_mean_k2",
    "seq_mean_k3",
    "seq_max_k2",
    "seq_max_k3",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupFilter:
    """Groups whose members all have the same `metric` are dropped, and other prompts sampled in their place."""

    metric: str  # "reward", or a name of what the scorer gives beside it
    batches_in_flight: int  # at most this many times `prompts_per_step` prompts are sampled at once


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlongPenalty:
    """Taken off the reward, rising to `factor` over the last `buffer_tokens` before `max_response_tokens`."""

    max_response_tokens: int
    buffer_tokens: int
    factor: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardFunction:
    """A user's Python function, run only where these very bytes of its file are trusted."""

    sha256: str
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveKl:
    """Moves the coefficient so that the KL comes near `target`; `horizon` in trajectories."""

    target: float
    horizon: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KlReward:
    """KL to the reference policy, taken off every token's reward."""

    estimator: KlEstimator
    coefficient: float  # the first one where it adapts
    adaptive: AdaptiveKl | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportanceWeights:
    """Ratio of old policy to sampler: above `upper` it becomes `upper`; with `lower`, 0 outside of both."""

    level: Literal["token", "sequence"]
    lower: float | None
    upper: float
    is_batch_normalized: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """Tokens, or whole responses, whose statistic leaves [lower, upper] are masked. k1 has a `lower`."""

    statistic: RejectionStatistic
    lower: float | None
    upper: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutCorrection:
    """What is done about the sampler being another distribution than the policy that is scored.

    `bypasses_scoring`: the sampler's log-probabilities are the old ones; nothing else is corrected then.
    """

    bypasses_scoring: bool
    importance_weights: ImportanceWeights | None
    rejections: tuple[Rejection, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Advantage:
    """What the estimator does not read is None."""

    estimator: Estimator
    divides_by_std: bool | None  # grpo and grpo_passk; with grpo, False is Dr.GRPO
    gamma: float | None  # gae and reinforce_plus_plus: discount
    gae_lambda: float | None  # gae


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregation:
    """How per-token losses become one number; `horizon` divides in seq-mean-token-sum-norm only."""

    mode: AggregationMode
    horizon: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLoss:
    """`aggregation` also holds for the entropy and the KL term, where the loss itself has one of its own."""

    name: PolicyLossName
    arguments: Mapping[str, float]  # those of bounds.POLICY_LOSS_ARGUMENTS
    aggregation: Aggregation
    entropy_coefficient: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KlLoss:
    """KL to the reference policy (the initial policy) as a term of the loss."""

    estimator: KlEstimator
    coefficient: float
