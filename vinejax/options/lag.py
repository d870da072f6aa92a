"""`rollout.lag`: solutions that wait for the iteration which values them and learns from them.

They are of weights one iteration older than those of their continuations and of the update;
`ppo.correction` weighs them by the ratio of the two policies. A run that is resumed has the same
ones, as checkpoints hold them. The first iteration samples its own, as without a lag, and the last
none for another.
"""

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.text import Tokenizer, continuation_text, decode
from vinejax.core.types import Rollout
from vinejax.engine.branches import Grown
from vinejax.model.decoder import Params
from vinejax.options.option import Option
from vinejax.rollout.lagged import LaggedSampler
from vinejax.rollout.problems import draw
from vinejax.rollout.sampler import Sampler, Start
from vinejax.session.iteration import Iteration
from vinejax.session.session import Session
from vinejax.tasks.rewards import Reward

NONE = -1  # tokens of a solution that does not wait
FINISHES = ("eos", "stop", "length")


class Lag(Option):
    """Keeps the next solutions as arrays of `rollout.prompts` x `rollout.per_prompt` rows."""

    def keeps(self, cfg: Config) -> bool:
        return cfg.rollout.lag > 0

    def fresh(self, session: Session) -> dict[str, np.ndarray]:
        return packed([], session.cfg)

    def begin(
        self, it: Iteration, kept: dict[str, np.ndarray], params: Params
    ) -> dict[str, np.ndarray]:
        session, cfg = it.session, it.cfg
        train, seed, left = session.problems["train"], cfg.seed, it.left.prompts
        count = min(cfg.rollout.prompts, left)
        following = []
        if it.number + 1 < cfg.iterations:
            following = draw(train, cfg.rollout.prompts, seed, it.number + 1)[: left - count]
        given = session.engine, session.graded, cfg, it.number
        waiting = None
        if (kept["lengths"][: count * cfg.rollout.per_prompt] != NONE).all():
            plain, problems = Sampler(*given), draw(train, count, seed, it.number)
            starts = plain.prompt_starts(problems, cfg.rollout.per_prompt)
            waiting = plain.episodes_of(starts, *unpacked(kept, starts, cfg, session.tokenizer))
        it.sampler = LaggedSampler(*given, waiting=waiting, following=following)
        return kept

    def scored(
        self, it: Iteration, kept: dict[str, np.ndarray], rollout: Rollout
    ) -> tuple[dict[str, np.ndarray], Rollout]:
        assert isinstance(it.sampler, LaggedSampler)
        return packed(it.sampler.drawn, it.cfg), rollout


def packed(drawn: list[tuple[Grown, Reward]], cfg: Config) -> dict[str, np.ndarray]:
    """Solutions as arrays whose shapes depend on the configuration alone.

    A response's text is kept as its length in characters, from which `unpacked` has it again. Of
    a reward's parts those of `reward.functions` are kept, and no metric that one of them logs.
    """
    rows = cfg.rollout.prompts * cfg.rollout.per_prompt
    names, longest = names_of(cfg), cfg.sample.max_tokens
    kept = {
        "lengths": np.full(rows, NONE, np.int32),  # tokens
        "shown": np.zeros(rows, np.int32),  # characters
        "finishes": np.zeros(rows, np.int32),
        "tokens": np.zeros((rows, longest), np.int32),
        "logprobs": np.zeros((rows, longest), np.float32),
        "rewards": np.full((rows, 1 + len(names)), np.nan),  # the sum, and parts by `names_of`
    }
    for row, (grown, reward) in enumerate(drawn):
        count = len(grown.tokens)
        kept["lengths"][row], kept["shown"][row] = count, len(grown.text)
        kept["finishes"][row] = FINISHES.index(grown.finish)
        kept["tokens"][row, :count], kept["logprobs"][row, :count] = grown.tokens, grown.logprobs
        parts = reward.parts or {}
        kept["rewards"][row] = [reward.total, *(parts.get(name, np.nan) for name in names)]
    return kept


def unpacked(
    kept: dict[str, np.ndarray], starts: list[Start], cfg: Config, tokenizer: Tokenizer
) -> tuple[list[Grown], list[Reward]]:
    """The solutions of `packed`, which begin at `starts`."""
    grown, rewards, names = [], [], names_of(cfg)
    prompts = [start.prompt for start in starts for _ in start.seeds]
    texts = {id(start.prompt): decode(tokenizer, start.prompt) for start in starts}
    for row, prompt in enumerate(prompts):
        count = int(kept["lengths"][row])
        tokens = kept["tokens"][row, :count].tolist()
        text = continuation_text(tokenizer, prompt, texts[id(prompt)], tokens)
        finish = FINISHES[kept["finishes"][row]]
        logprobs = kept["logprobs"][row, :count].tolist()
        grown.append(Grown(tokens, logprobs, text[: kept["shown"][row]], finish))
        total, *found = kept["rewards"][row].tolist()
        pairs = zip(names, found, strict=True)
        parts = {name: value for name, value in pairs if not np.isnan(value)}
        rewards.append(Reward(total, parts or None))
    return grown, rewards


def names_of(cfg: Config) -> list[str]:
    """The names of the functions of `reward.functions`, as in a reward's parts."""
    return [path.rpartition(".")[2] for path in cfg.reward.functions]
