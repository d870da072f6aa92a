"""Solutions and continuations of several turns: episodes in the environments of a task.

An episode is a sequence of branches, one per turn. When a turn has ended, its environment takes a
step on the host while the devices decode turns of other episodes. The observation is appended to
the turn, and the next turn enters the engine's stream with the same seed. A draw depends only on
the seed and on the place in the sequence. An episode is therefore a function of (seeds,
environment), whatever the order of turns, the slots or the number of hosts.

Drawn tokens are never encoded again. A prompt and each observation are encoded once.

A continuation of a state starts from the environment as it was when the state's turn began, and it
meets the same noise as the episode did. The sampler makes that environment by replaying the
recorded actions: once per solution if the environment has `fork`, else once per continuation. The
replay must give the recorded answers.

On one host a turn prefills only the tokens that follow the turn before it (`engine/keeping.py`).
Several hosts see turns end in different orders, so there turns come in waves: the next turns enter
when all have ended, and each prefills its whole trunk.
"""

import functools
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from vinejax.core.errors import UserError
from vinejax.core.seeds import row_seed
from vinejax.core.text import (
    continuation_text,
    decode,
    prefix_end,
    response_text,
    special_tokens,
)
from vinejax.core.types import Continuation, Episode, Problem, PromptedProblem, Turn
from vinejax.credit.samples import Sample
from vinejax.engine.branches import Branch, Feeder, Grown, Stream, StreamInput
from vinejax.model.decoder import Params
from vinejax.rollout.overlong import penalties
from vinejax.rollout.play import (
    BranchTrunks,
    Play,
    num_drawn,
    outcome,
    play_steps,
    play_trunks,
    without_observations,
)
from vinejax.rollout.sampler import DrawnContinuation, Responses, Sampler, ValuedState, whole_text
from vinejax.runtime.distributed import is_mine, process_place, shared_work
from vinejax.tasks.environment import (
    Environment,
    EnvRules,
    EnvStart,
    MultiTurn,
    Observation,
    start_environment,
)
from vinejax.tasks.prompts import (
    LONGEST_TOKEN,
    ChatTurns,
    encode_prompt,
    encode_within,
    tools_of,
)

MOST_CHARACTERS = 2**20  # limit of an observation; no model reads more at once


class Turns:
    """Plays under way, in which the engine draws turns and environments answer them."""

    def __init__(self, sampler: "TurnSampler", plays: list[Play], executor: ThreadPoolExecutor):
        self.plays = plays
        self.max_plays = len(plays)  # upper bound of the number of plays
        self._sampler, self._executor = sampler, executor
        self._play_of_branch: list[int] = []  # play numbers by branch
        # By play whose turn was drawn and has no answer yet.
        self._actions: dict[int, str] = {}
        self._steps: dict[int, Future[list[Any]]] = {}  # the environments' answers and keys

    def entering(
        self, numbers: Iterable[int], first_trunks: BranchTrunks | None = None
    ) -> StreamInput:
        """The next turns of the plays with these numbers, as input of a stream.

        `first_trunks` has their trunks; by default each play's own tokens are its trunk.
        """
        entering = [*numbers]
        self._play_of_branch += entering
        return self._sampler.branches_of([self.plays[i] for i in entering], first_trunks)

    def read(self, stream: Stream, count: int) -> None:
        """Reads a stream to its end, and has environments answer the turns that it draws.

        The stream began with the last `count` turns that `entering` returned.
        """
        first = len(self._play_of_branch) - count
        for branch, grown in stream:
            i = self._play_of_branch[first + branch]
            action = self._sampler.take_drawn(self.plays[i], grown)
            if action is None:
                self._close(i)
                continue
            self._actions[i] = action
            if (environment := self.plays[i].environment) is not None:
                self._steps[i] = self._executor.submit(
                    lambda env, text: [*env.step(text), env.key()], environment, action
                )

    def more(self) -> StreamInput | None:
        """The turns that follow the turns drawn so far; None once all episodes are over.

        Waits for all environments, so that timing has no influence on which turns enter.
        """
        answers = shared_work({i: future.result() for i, future in self._steps.items()})
        actions, self._actions, self._steps = self._actions, {}, {}
        for i, action in actions.items():
            *fields, key = answers[i]
            self._sampler.end_turn(self.plays[i], action, Observation(*fields), key)
            if self.plays[i].finish:
                self._close(i)
        # Sorted, because turns end in a different order on each host.
        unfinished = self.next_plays([i for i in sorted(actions) if not self.plays[i].finish])
        return None if all(play.finish for play in self.plays) else self.entering(unfinished)

    def next_plays(self, unfinished: list[int]) -> list[int]:
        """The numbers of the plays whose next turns enter the stream.

        `unfinished` are the numbers of the plays whose last turns were just answered and whose
        episodes go on.
        """
        return unfinished

    def _close(self, i: int) -> None:
        if (environment := self.plays[i].environment) is not None:
            environment.close()


class TurnSampler(Sampler):
    """A sampler of a multi-turn task, whose solutions are episodes in environments.

    All solutions of a problem meet the same environment. The environment's seed is a function of
    the run's seed, the iteration and the problem.
    """

    @property
    def task(self) -> Any:
        """The task of the run, which must be `MultiTurn`."""
        assert isinstance(self.graded.task, MultiTurn)
        return self.graded.task

    def solutions(
        self, params: Params, problems: list[PromptedProblem], most_groups: int
    ) -> list[Episode]:
        """Episodes without values, divided into steps by the task's `split` within each turn."""
        numbers = range(self.cfg.rollout.per_prompt)
        plays = self.start_plays([(problem, numbers) for problem, _ in problems])
        self._play(params, plays)
        return [self.episode(play) for play in plays]

    def responses(
        self, params: Params, problems: list[PromptedProblem], per_problem: int
    ) -> Responses:
        """`per_problem` episodes of each problem, whose texts have the turns and the observations.

        Their tokens are those that the policy drew. An episode that ran out of tokens or turns has
        the reward of its last action.
        """
        plays = self.start_plays([(problem, range(per_problem)) for problem, _ in problems])
        self._play(params, plays)
        tokenizer = self.engine.tokenizer
        grown = [
            Grown(
                tokens=without_observations(play, play.response),
                logprobs=without_observations(play, play.logprobs),
                text=response_text(tokenizer, play.prompt, play.response),
                finish=play.finish,
            )
            for play in plays
        ]
        totals = np.array([outcome(play, None) for play in plays], np.float32)
        rows = [slice(i, i + per_problem) for i in range(0, len(plays), per_problem)]
        parts: list[list[dict[str, float] | None]] = [[None] * per_problem for _ in problems]
        return Responses([grown[row] for row in rows], totals.reshape(-1, per_problem), parts)

    def continuations(
        self,
        params: Params,
        episodes: list[Episode],
        states: list[ValuedState],
        counts: list[int],
        scored: bool = False,
        with_steps: bool = False,
    ) -> list[np.ndarray]:
        """Adds continuations to the states, as `Sampler.continuations` does.

        `values.budget` limits the turns of a continuation in the same way as its tokens.
        """
        cfg = self.cfg
        branch_states = [s for s, count in zip(states, counts, strict=True) for _ in range(count)]
        environments = self._restored(states, counts)
        plays = []
        for i, (state, k) in enumerate(_numbered(states, counts)):
            plays.append(self._continued(state, self.continuation_seed(state, k)))
            plays[i].environment = environments.get(i)
        trunks = BranchTrunks(
            trunks=[episode.tokens for episode in episodes],
            trunk_of_branch=[state.trunk for state in branch_states],
        )
        logprobs = self._play(params, plays, trunks, scored)
        self._check_forks(plays)
        length_penalties = penalties([num_drawn(play) for play in plays], cfg)
        for state, play, penalty in zip(branch_states, plays, length_penalties, strict=True):
            ends, rewards = self._steps(play)
            reward = outcome(play, cfg.reward.truncated)
            sample = Sample(
                tokens=np.array(play.response, np.int32),
                start=state.used,
                ends=ends,
                rewards=rewards,
                outcome=reward - (penalty if state.episode.penalty is not None else 0.0),
                logprobs=play.logprobs[state.used :],
            )
            total = sample.return_from(state.used, cfg.ppo.gamma)
            before = response_text(self.engine.tokenizer, play.prompt, play.response[: state.used])
            text = response_text(self.engine.tokenizer, play.prompt, play.response)[len(before) :]
            continuation = Continuation(text, total, play.finish, reward)
            state.continuations.append(DrawnContinuation(continuation, sample))
        return logprobs

    def start_plays(
        self, numbers_by_problem: Iterable[tuple[Problem, Iterable[int]]]
    ) -> list[Play]:
        """A new play for each pair (problem, solution number), with the seed of that solution."""
        plays, first_texts = [], {}
        for problem, numbers in numbers_by_problem:
            for seed in self.seeds(problem, numbers):
                i, environment = len(plays), None
                if is_mine(i):
                    environment, first_texts[i] = self._new_environment(problem)
                play = Play(
                    problem,
                    prompt=[],
                    seed=seed,
                    tokens_left=self.cfg.sample.max_tokens,
                    observed_left=self.cfg.env.observed,
                    turns_left=self._max_turns,
                    environment=environment,
                )
                plays.append(play)
        first_texts = shared_work(first_texts)
        first_of: dict[str, int] = {}  # the first play of each problem
        for i, play in enumerate(plays):
            first = first_of.setdefault(play.problem.id, i)
            if first_texts[i] != first_texts[first]:
                raise self._start_differs(play.problem, first_texts[first], first_texts[i])
            play.prompt = plays[first].prompt or self._prompt(play.problem, first_texts[i])
        return plays

    def copied_environment(self, play: Play) -> Environment | None:
        """A copy of an episode's environment; None on hosts that do not have it."""
        if play.environment is None:
            return None
        return play.environment.fork() if play.environment.forks else self._repeated(play)

    def _repeated(self, play: Play) -> Environment:
        """A new environment in which a play's ended turns were replayed; the answers must agree."""
        environment, _ = self._new_environment(play.problem)
        environment.replay(play.turns)
        return environment

    def turns_of(self, plays: list[Play], executor: ThreadPoolExecutor) -> Turns:
        """The turns of these episodes; a subclass may add plays or change their order."""
        return Turns(self, plays, executor)

    def _start_differs(self, problem: Problem, first: str, other: str) -> UserError:
        message = f"the environment began with {first!r:.200}, and then with {other!r:.200}"
        remedy = "it must be a function of (problem, seed, actions)"
        return UserError(f"task {self.task.name}, problem {problem.id}: {message}; {remedy}")

    def _prompt(self, problem: Problem, first: str) -> list[int]:
        """The ids of a prompt with the environment's first text."""
        text, limit = self.task.prompt(problem) + first, self.cfg.data.max_prompt_tokens
        ids: list[int] = []
        if len(text) <= LONGEST_TOKEN * limit:
            chat = self._chat
            variables = chat.variables if chat else None
            tokenizer = self.engine.tokenizer
            ids = encode_prompt(tokenizer, text, bool(chat), problem.context, variables)
        if not ids or len(ids) > limit:
            message = (
                "with the environment's first text the prompt has more tokens than"
                f" data.max_prompt_tokens = {limit}; raise it"
            )
            raise UserError(f"task {self.task.name}, problem {problem.id}: {message}")
        return ids

    @functools.cached_property
    def _chat(self) -> ChatTurns | None:
        """The markup of turns; None without a chat template."""
        data = self.cfg.data
        if not data.chat_template:
            return None
        return ChatTurns.of(self.engine.tokenizer, data, tools_of(self.task))

    def _new_environment(self, problem: Problem) -> tuple[Environment, str]:
        """(a new environment at the start of a problem's episodes, its first text)."""
        purpose = f"environment {problem.id}"
        seed = row_seed(self.cfg.seed, self.iteration, purpose) % 2**32
        return start_environment(self.task, EnvStart(problem, seed), self._rules)

    @functools.cached_property
    def _rules(self) -> EnvRules:
        env, after = self.cfg.env, self._chat.after if self._chat else ""
        skips_special = self.cfg.sample.skip_special_tokens
        hidden = frozenset(special_tokens(self.engine.tokenizer) if skips_special else ())
        return EnvRules(env.timeout_s, env.thinking == "kept", after, hidden)

    @property
    def _max_turns(self) -> int:
        return self.cfg.env.max_turns or self.task.max_turns

    def _continued(self, state: ValuedState, seed: int) -> Play:
        """A continuation of a state before its first draw, still without its environment."""
        cfg, episode = self.cfg, state.episode
        turns = _turns_before(state)
        play = Play(
            problem=state.problem,
            prompt=episode.prompt,
            seed=seed,
            tokens_left=cfg.sample.max_tokens,
            observed_left=cfg.env.observed - sum(turn.end - turn.drawn for turn in turns),
            turns_left=self._max_turns,
            environment=None,
            response=episode.response[: state.used],
            logprobs=[0.0] * state.used,
            turns=turns,
        )
        if cfg.values.budget == "left":
            play.tokens_left -= num_drawn(play)
            play.turns_left -= len(turns)
        before = play.prompt + play.response[: play.start]
        play.turn_text = response_text(self.engine.tokenizer, before, play.response[play.start :])
        return play

    def _restored(self, states: list[ValuedState], counts: list[int]) -> dict[int, Environment]:
        """The environments of this host's continuations, keyed by the continuation's number."""
        numbers: dict[int, list[int]] = {}  # continuation numbers, by the id of their state
        for i, (state, _) in enumerate(_numbered(states, counts)):
            if is_mine(i):
                numbers.setdefault(id(state), []).append(i)
        by_episode: dict[int, list[ValuedState]] = {}
        for state in states:
            if id(state) in numbers:
                by_episode.setdefault(state.trunk, []).append(state)
        environments: dict[int, Environment] = {}
        for episode_states in by_episode.values():
            base, num_replayed = self._replayed(episode_states[0], []), 0
            for state in sorted(episode_states, key=lambda state: state.used):
                turns = _turns_before(state)
                if not base.forks:
                    for i in numbers[id(state)]:
                        environments[i] = self._replayed(state, turns)
                    continue
                base.replay(turns[num_replayed:])
                num_replayed = len(turns)
                for i in numbers[id(state)]:
                    environments[i] = base.fork()
            base.close()
        return environments

    def _replayed(self, state: ValuedState, turns: Sequence[Turn]) -> Environment:
        """A new environment of a state's episode, in which these turns were replayed."""
        environment, first_text = self._new_environment(state.problem)
        if self._prompt(state.problem, first_text) != state.episode.prompt:
            recorded = decode(self.engine.tokenizer, state.episode.prompt)
            raise self._start_differs(state.problem, recorded, first_text)
        environment.replay(turns)
        return environment

    def _check_forks(self, plays: Sequence[Play]) -> None:
        """Replays every `env.check_every`-th continuation from the episode's start.

        Each host replays only its own continuations. UserError is raised if answers differ from the
        recorded answers, as they can if the copies that `fork` makes share mutable data.
        """
        for play in plays[:: self.cfg.env.check_every]:
            if play.environment is not None:
                self._repeated(play).close()

    def _play(
        self,
        params: Params,
        plays: list[Play],
        first_trunks: BranchTrunks | None = None,
        scored: bool = False,
    ) -> list[np.ndarray]:
        """Plays all episodes to their ends; `first_trunks` are the trunks of their first branches.

        Returns the log-probabilities of `first_trunks` if `scored`.
        """
        logprobs: list[np.ndarray] = []
        with ThreadPoolExecutor(self.cfg.env.workers, "environments") as executor:
            turns = self.turns_of(plays, executor)
            fed: StreamInput | None = turns.entering(range(len(plays)), first_trunks)
            count = len(fed.trunks)
            try:
                while fed is not None:
                    stream = self.engine.stream(
                        params,
                        fed.trunks,
                        fed.branches,
                        max_tokens=fed.max_tokens,
                        scored=scored and not logprobs,
                        feed=self._feed(turns),
                    )
                    turns.read(stream, len(fed.branches))
                    logprobs = logprobs or stream.trunk_logprobs
                    fed = turns.more()
            finally:
                executor.shutdown(wait=True, cancel_futures=True)
        return logprobs[:count]

    def _feed(self, turns: "Turns") -> Feeder | None:
        """The feeder that puts later turns into a stream.

        None on several hosts, where turns come in waves. None without plays as well, because the
        stream then only computes trunks.
        """
        if process_place()[1] > 1 or not turns.plays:
            return None
        max_prompt = self.cfg.data.max_prompt_tokens
        max_response = max(
            len(play.response) + play.tokens_left + play.observed_left for play in turns.plays
        )
        return Feeder(
            turns.more,
            branches=turns.max_plays * self._max_turns,
            longest=min(max_prompt + max_response, self.engine.model.cfg.context),
            at_once=turns.max_plays,
        )

    def branches_of(self, plays: Sequence[Play], trunks: BranchTrunks | None) -> StreamInput:
        """A branch for the rest of each play's current turn, as input of a stream.

        Without `trunks`, each play's own tokens are its trunk.
        """
        branch_trunks = trunks or play_trunks(plays)
        branches = []
        for play, trunk in zip(plays, branch_trunks.trunk_of_branch, strict=True):
            is_inside = play.response or trunks  # else the branch begins at a prompt's end
            branches.append(
                Branch(
                    trunk=trunk,
                    position=len(play.tokens),
                    seed=play.seed,
                    response=len(play.prompt) + play.start if is_inside else None,
                )
            )
        return StreamInput(branch_trunks.trunks, branches, [self._budget(play) for play in plays])

    def _budget(self, play: Play) -> int:
        """The maximum of tokens that the rest of a turn may have."""
        if self.cfg.env.turn_tokens is None:
            return play.tokens_left
        used = len(play.response) - play.start
        return min(play.tokens_left, self.cfg.env.turn_tokens - used)

    def _room(self, play: Play) -> int:
        """The number of tokens that the model's context has left."""
        return self.engine.model.cfg.context - len(play.prompt) - len(play.response)

    def take_drawn(self, play: Play, grown: Grown) -> str | None:
        """Adds drawn tokens; returns the action, or None if the episode ran out of tokens."""
        play.turn_text = whole_text(play.turn_text, grown)
        play.response = play.response + grown.tokens
        play.logprobs = play.logprobs + grown.logprobs
        play.tokens_left -= len(grown.tokens)
        if grown.finish == "length" and min(play.tokens_left, self._room(play)) <= 0:
            play.finish = "length"
            return None
        if grown.finish != "stop":
            return play.turn_text
        tokenizer = self.engine.tokenizer
        before = play.prompt + play.response[: play.start]
        turn_tokens = play.response[play.start :]
        decoded = continuation_text(tokenizer, prefix_end(tokenizer, before), turn_tokens)
        for stop in sorted(self.engine.sample_config.stop, key=len):
            if decoded.startswith(play.turn_text + stop):
                return play.turn_text + stop
        return play.turn_text

    def end_turn(self, play: Play, action: str, observation: Observation, key: str | None) -> None:
        """Ends a turn with the answer `observation`; `key` is that of the environment's new state.

        The whole episode ends as well if the answer says so, or if a limit is reached.
        """
        drawn = len(play.response)
        play.turns_left -= 1
        if observation.done:
            play.finish = "stop"
        elif observation.truncated or min(play.turns_left, play.tokens_left) <= 0:
            play.finish = "length"
        elif len(observation.text) > MOST_CHARACTERS:
            play.finish = "length"
        else:
            ids = self._observed(observation, play.response[-1])
            if len(ids) > play.observed_left or len(ids) >= self._room(play):
                play.finish = "length"
            else:
                play.observed_left -= len(ids)
                play.response = play.response + ids
                play.logprobs = play.logprobs + [0.0] * len(ids)
        play.turns.append(
            Turn(
                drawn=drawn,
                end=len(play.response),
                action=action,
                observation=observation.text,
                reward=observation.reward,
                key=key,
            )
        )
        play.turn_text = ""

    def _observed(self, observation: Observation, last: int) -> list[int]:
        """The token ids of an observation after a turn whose last token is `last`."""
        text, chat = observation.text, self._chat
        if chat:
            text = chat.around(text, last, observation.results)
        return encode_within(self.engine.tokenizer, text)

    def episode(self, play: Play) -> Episode:
        ends, rewards = self._steps(play)
        return Episode(
            problem_id=play.problem.id,
            prompt=play.prompt,
            response=play.response,
            logprobs=play.logprobs,
            text=response_text(self.engine.tokenizer, play.prompt, play.response),
            finished=play.finish != "length",
            reward=float(np.float32(outcome(play, self.cfg.reward.truncated))),
            step_ends=ends,
            step_rewards=rewards,
            turns=tuple(play.turns),
        )

    def _steps(self, play: Play) -> tuple[list[int], list[float]]:
        """The result of `play_steps` for the run's task, tokenizer and `reward.truncated`."""
        truncated = self.cfg.reward.truncated
        return play_steps(self.graded, self.engine.tokenizer, play, truncated)


def _numbered(states: list[ValuedState], counts: list[int]) -> list[tuple[ValuedState, int]]:
    """(state, k) for each continuation to draw, where it will be continuation k of its state."""
    pairs = zip(states, counts, strict=True)
    return [(s, len(s.continuations) + k) for s, count in pairs for k in range(count)]


def _turns_before(state: ValuedState) -> list[Turn]:
    """The turns of a state's episode that ended before the state."""
    return [turn for turn in state.episode.turns if turn.end <= state.used]
