"""Solutions and continuations of several turns: episodes in the environments of a task.

An episode is one stream of branches, a turn each. When a turn has ended, its environment is stepped
on the host while the devices go on with others, its answer is put after the turn, and the next turn
enters the stream with the same seed. A draw depends on the seed and the place in the sequence
alone, so an episode is a function of (seeds, environment), whatever the order, the slots or the
hosts.

The tokens that were drawn stay as they are. A prompt and each observation are encoded once.

A continuation of a state has the environment as it was when the state's turn began, and meets the
noise that the episode met. The environment is made by taking the recorded actions again, once per
solution if it has `fork`, else once per continuation; its answers must be those of then.

On one host a turn prefills what came after the one before it (`engine/keeping.py`). On several,
which see turns end in another order, turns come in waves: the next ones enter when all have ended,
and prefill their whole trunks.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from vinejax.core.errors import UserError
from vinejax.core.seeds import row_seed
from vinejax.core.text import continuation_text, decode, response_text
from vinejax.core.types import Continuation, Episode, Problem, PromptedProblem, Turn
from vinejax.credit.samples import Sample
from vinejax.engine.branches import Branch, Feeder, Grown, Stream, StreamInput
from vinejax.model.decoder import Params
from vinejax.rollout.overlong import penalties
from vinejax.rollout.sampler import Drawn, Responses, Sampler, State, whole_text
from vinejax.runtime.distributed import is_mine, process_place, shared_work
from vinejax.tasks.environment import Begun, Environment, MultiTurn, Observation, begun_anew
from vinejax.tasks.prompts import LONGEST_TOKEN, ChatTurns, encode_prompt, encode_within

MOST_CHARACTERS = 2**20  # of an observation; no model reads more at once


@dataclasses.dataclass(eq=False)
class Play:
    """An episode, or a continuation of one, while it is sampled."""

    problem: Problem
    prompt: list[int]
    seed: int  # of its draws
    tokens_left: int  # that it may draw
    observed_left: int  # tokens of observations
    turns_left: int
    environment: Environment | None  # None: another host has it
    response: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)  # 0 where not drawn
    turns: list[Turn] = dataclasses.field(default_factory=list)
    said: str = ""  # the text of the turn that is not over
    finish: str = ""  # 'stop' | 'length'; "": it is not over

    @property
    def start(self) -> int:
        """Response tokens before the turn that is not over."""
        return self.turns[-1].end if self.turns else 0

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.response


class Places(NamedTuple):
    """Trunks, and for each branch the number of its trunk."""

    trunks: list[list[int]]
    of_branches: list[int]


class Turns:
    """Episodes while they are sampled: the turns that are drawn, and those that are answered."""

    def __init__(self, sampler: "TurnSampler", plays: list[Play], executor: ThreadPoolExecutor):
        self.plays = plays
        self.most = len(plays)  # there will ever be
        self._sampler, self._executor = sampler, executor
        self._of_branches: list[int] = []  # the number of each branch's play
        # Of plays whose turn was drawn and is not answered: the action, and the environment's step.
        self._actions: dict[int, str] = {}
        self._acting: dict[int, Future[list[Any]]] = {}

    def entering(self, numbers: Iterable[int], places: Places | None = None) -> StreamInput:
        """The next turns of these plays, which enter the stream."""
        entering = [*numbers]
        self._of_branches += entering
        return self._sampler.branches_of([self.plays[i] for i in entering], places)

    def read(self, stream: Stream, count: int) -> None:
        """Takes the turns of a stream, which begins with the last `count` that entered."""
        first = len(self._of_branches) - count
        for branch, grown in stream:
            i = self._of_branches[first + branch]
            action = self._sampler.said(self.plays[i], grown)
            if action is None:
                self._close(i)
                continue
            self._actions[i] = action
            if (environment := self.plays[i].environment) is not None:
                self._acting[i] = self._executor.submit(
                    lambda env, said: [*env.step(said), env.key()], environment, action
                )

    def more(self) -> StreamInput | None:
        """The turns after those that were drawn; None once all episodes are over.

        It waits for the environments, so that the clock decides nothing.
        """
        answers = shared_work({i: future.result() for i, future in self._acting.items()})
        actions, self._actions, self._acting = self._actions, {}, {}
        for i, action in actions.items():
            *answer, key = answers[i]
            self._sampler.answered(self.plays[i], action, Observation(*answer), key)
            if self.plays[i].finish:
                self._close(i)
        # In one order on all hosts, to which turns come in orders of their own.
        going_on = self.next_after([i for i in sorted(actions) if not self.plays[i].finish])
        return None if all(play.finish for play in self.plays) else self.entering(going_on)

    def next_after(self, going_on: list[int]) -> list[int]:
        """The plays that enter next, after these whose turn was answered."""
        return going_on

    def _close(self, i: int) -> None:
        if (environment := self.plays[i].environment) is not None:
            environment.close()


class TurnSampler(Sampler):
    """A sampler of a multi-turn task, whose solutions are episodes in environments.

    All solutions of a problem meet the same environment: its seed depends on the run's, the
    iteration and the problem.
    """

    @property
    def task(self) -> Any:
        """The task, which is `MultiTurn`."""
        assert isinstance(self.graded.task, MultiTurn)
        return self.graded.task

    def solutions(
        self, params: Params, problems: list[PromptedProblem], most_groups: int
    ) -> list[Episode]:
        """Episodes with a step per step of the task's `split` within turns, without values."""
        numbers = range(self.cfg.rollout.per_prompt)
        plays = self.begun([(problem, numbers) for problem, _ in problems])
        self._play(params, plays)
        return [self.episode(play) for play in plays]

    def responses(
        self, params: Params, problems: list[PromptedProblem], per_problem: int
    ) -> Responses:
        """`per_problem` episodes of each problem; texts have what both sides said.

        An episode that ran out of tokens or turns has the reward of its last action.
        """
        plays = self.begun([(problem, range(per_problem)) for problem, _ in problems])
        self._play(params, plays)
        tokenizer = self.engine.tokenizer
        grown = [
            Grown(p.response, p.logprobs, response_text(tokenizer, p.prompt, p.response), p.finish)
            for p in plays
        ]
        totals = np.array([outcome(play, None) for play in plays], np.float32)
        rows = [slice(i, i + per_problem) for i in range(0, len(plays), per_problem)]
        parts: list[list[dict[str, float] | None]] = [[None] * per_problem for _ in problems]
        return Responses([grown[row] for row in rows], totals.reshape(-1, per_problem), parts)

    def continuations(
        self,
        params: Params,
        episodes: list[Episode],
        states: list[State],
        counts: list[int],
        scored: bool = False,
        with_steps: bool = False,
    ) -> list[np.ndarray]:
        """As `Sampler.continuations`; with `values.budget` 'left' turns are bounded alike."""
        cfg = self.cfg
        wanted = [s for s, count in zip(states, counts, strict=True) for _ in range(count)]
        environments = self._restored(states, counts)
        plays = []
        for i, (state, k) in enumerate(_numbered(states, counts)):
            plays.append(self._continued(state, self.seed_after(state, k)))
            plays[i].environment = environments.get(i)
        places = Places([episode.tokens for episode in episodes], [s.trunk for s in wanted])
        logprobs = self._play(params, plays, places, scored)
        self._check_forks(plays)
        lost = penalties([_num_drawn(play) for play in plays], cfg)
        for state, play, penalty in zip(wanted, plays, lost, strict=True):
            ends, rewards = self._steps(play, cfg.reward.truncated)
            sample = Sample(
                tokens=np.array(play.response, np.int32),
                start=state.used,
                ends=ends,
                rewards=rewards,
                outcome=outcome(play, cfg.reward.truncated)
                - (penalty if state.episode.penalty is not None else 0.0),
            )
            total = sample.return_from(state.used, cfg.ppo.gamma)
            before = response_text(self.engine.tokenizer, play.prompt, play.response[: state.used])
            text = response_text(self.engine.tokenizer, play.prompt, play.response)[len(before) :]
            state.drawn.append(Drawn(Continuation(text, total, play.finish), sample))
        return logprobs

    def begun(self, wanted: Iterable[tuple[Problem, Iterable[int]]]) -> list[Play]:
        """Episodes at their start: solutions of these numbers of each problem."""
        left = self.cfg.sample.max_tokens, self.cfg.env.observed, self._max_turns
        plays, firsts = [], {}
        for problem, numbers in wanted:
            for seed in self.seeds(problem, numbers):
                i, environment = len(plays), None
                if is_mine(i):
                    begin = self._begin(problem)
                    environment, firsts[i] = begun_anew(self.task, begin, self._timeout_s)
                plays.append(Play(problem, [], seed, *left, environment))
        firsts = shared_work(firsts)
        first_of: dict[str, int] = {}
        for i, play in enumerate(plays):
            first = first_of.setdefault(play.problem.id, i)
            if firsts[i] != firsts[first]:
                raise self._other_first(play.problem, firsts[first], firsts[i])
            play.prompt = plays[first].prompt or self._prompt(play.problem, firsts[i])
        return plays

    def copied(self, play: Play) -> Environment | None:
        """The environment of an episode, once more; None on other hosts."""
        if play.environment is None or play.environment.forks:
            return play.environment and play.environment.fork()
        return self._repeated(play)

    def _repeated(self, play: Play) -> Environment:
        """A new environment after all ended turns of an episode, whose answers must be the same."""
        environment, _ = begun_anew(self.task, self._begin(play.problem), self._timeout_s)
        environment.replay(play.turns)
        return environment

    def turns_of(self, plays: list[Play], executor: ThreadPoolExecutor) -> Turns:
        """How these episodes are played."""
        return Turns(self, plays, executor)

    def _other_first(self, problem: Problem, first: str, other: str) -> UserError:
        rule = f"the environment began with {first!r:.200}, and then with {other!r:.200}"
        remedy = "it must be a function of (problem, seed, actions)"
        return UserError(f"task {self.task.name}, problem {problem.id}: {rule}; {remedy}")

    def _prompt(self, problem: Problem, first: str) -> list[int]:
        """The ids of a prompt with the environment's first text."""
        text, most = self.task.prompt(problem) + first, self.cfg.data.max_prompt_tokens
        ids: list[int] = []
        if len(text) <= LONGEST_TOKEN * most:
            chat = self._chat
            variables = chat.variables if chat else None
            tokenizer = self.engine.tokenizer
            ids = encode_prompt(tokenizer, text, bool(chat), problem.context, variables)
        if not ids or len(ids) > most:
            rule = "with the environment's first text the prompt has more tokens than"
            limit = f"data.max_prompt_tokens = {most}; raise it"
            raise UserError(f"task {self.task.name}, problem {problem.id}: {rule} {limit}")
        return ids

    @functools.cached_property
    def _chat(self) -> ChatTurns | None:
        """The markup of turns, where prompts have a chat template."""
        data = self.cfg.data
        return ChatTurns.of(self.engine.tokenizer, data) if data.chat_template else None

    def _begin(self, problem: Problem) -> Begun:
        purpose = f"environment {problem.id}"
        return Begun(problem, row_seed(self.cfg.seed, self.iteration, purpose) % 2**32)

    @property
    def _timeout_s(self) -> float:
        return self.cfg.env.timeout_s

    @property
    def _max_turns(self) -> int:
        return self.cfg.env.max_turns or self.task.max_turns

    def _continued(self, state: State, seed: int) -> Play:
        """A continuation of a state, before its first draw and without its environment."""
        cfg, episode = self.cfg, state.episode
        turns = _turns_before(state)
        play = Play(
            state.problem,
            episode.prompt,
            seed,
            cfg.sample.max_tokens,
            cfg.env.observed - sum(turn.end - turn.drawn for turn in turns),
            self._max_turns,
            None,
            episode.response[: state.used],
            [0.0] * state.used,
            turns,
        )
        if cfg.values.budget == "left":
            play.tokens_left -= _num_drawn(play)
            play.turns_left -= len(turns)
        before = play.prompt + play.response[: play.start]
        play.said = response_text(self.engine.tokenizer, before, play.response[play.start :])
        return play

    def _restored(self, states: list[State], counts: list[int]) -> dict[int, Environment]:
        """The environments of this host's continuations, by their number."""
        numbers: dict[int, list[int]] = {}  # of a state's continuations
        for i, (state, _) in enumerate(_numbered(states, counts)):
            if is_mine(i):
                numbers.setdefault(id(state), []).append(i)
        by_episode: dict[int, list[State]] = {}
        for state in states:
            if id(state) in numbers:
                by_episode.setdefault(state.trunk, []).append(state)
        found: dict[int, Environment] = {}
        for of_one in by_episode.values():
            base, done = self._replayed(of_one[0], []), 0
            for state in sorted(of_one, key=lambda state: state.used):
                turns = _turns_before(state)
                if not base.forks:
                    for i in numbers[id(state)]:
                        found[i] = self._replayed(state, turns)
                    continue
                base.replay(turns[done:])
                done = len(turns)
                for i in numbers[id(state)]:
                    found[i] = base.fork()
            base.close()
        return found

    def _replayed(self, state: State, turns: Sequence[Turn]) -> Environment:
        """A new environment after these turns of an episode."""
        environment, first = begun_anew(self.task, self._begin(state.problem), self._timeout_s)
        if self._prompt(state.problem, first) != state.episode.prompt:
            then = decode(self.engine.tokenizer, state.episode.prompt)
            raise self._other_first(state.problem, then, first)
        environment.replay(turns)
        return environment

    def _check_forks(self, plays: Sequence[Play]) -> None:
        """Repeats some of this host's continuations from their first action.

        A fork that shares its state with others answers otherwise.
        """
        for play in plays[:: self.cfg.env.check_every]:
            if play.environment is not None:
                self._repeated(play).close()

    def _play(
        self,
        params: Params,
        plays: list[Play],
        places: Places | None = None,
        scored: bool = False,
    ) -> list[np.ndarray]:
        """Plays all episodes to their ends; their first branches lie at `places`.

        Returns the log-probabilities of the trunks of `places` if `scored`.
        """
        logprobs: list[np.ndarray] = []
        with ThreadPoolExecutor(self.cfg.env.workers, "environments") as executor:
            turns = self.turns_of(plays, executor)
            fed: StreamInput | None = turns.entering(range(len(plays)), places)
            count = len(fed.trunks)
            try:
                while fed is not None:
                    given = fed.trunks, fed.branches, fed.max_tokens, scored and not logprobs
                    stream = self.engine.stream(params, *given, self._feed(turns))
                    turns.read(stream, len(fed.branches))
                    logprobs = logprobs or stream.trunk_logprobs
                    fed = turns.more()
            finally:
                executor.shutdown(wait=True, cancel_futures=True)
        return logprobs[:count]

    def _feed(self, turns: "Turns") -> Feeder | None:
        """How later turns enter a stream; None on several hosts, where they come in waves.

        None, too, if there are no plays: only trunks are computed.
        """
        if process_place()[1] > 1 or not turns.plays:
            return None
        count, prompt = turns.most, self.cfg.data.max_prompt_tokens
        rest = [len(p.response) + p.tokens_left + p.observed_left for p in turns.plays]
        longest = min(prompt + max(rest), self.engine.model.cfg.context)
        later = count * self._max_turns
        return Feeder(turns.more, later, longest, at_once=count)

    def branches_of(self, plays: Sequence[Play], places: Places | None) -> StreamInput:
        """The rest of each play's turn, on its tokens or at `places`."""
        trunks, of_branches = places or _places(plays)
        branches = []
        for play, trunk in zip(plays, of_branches, strict=True):
            first = len(play.prompt) + play.start
            is_inside = play.response or places  # else it begins at a prompt's end
            place = trunk, len(play.tokens), play.seed, first if is_inside else None
            branches.append(Branch(*place))
        return StreamInput(trunks, branches, [self._budget(play) for play in plays])

    def _budget(self, play: Play) -> int:
        """The most tokens of the rest of a turn."""
        if self.cfg.env.turn_tokens is None:
            return play.tokens_left
        used = len(play.response) - play.start
        return min(play.tokens_left, self.cfg.env.turn_tokens - used)

    def _room(self, play: Play) -> int:
        """The tokens that the model's context has left."""
        return self.engine.model.cfg.context - len(play.prompt) - len(play.response)

    def said(self, play: Play, grown: Grown) -> str | None:
        """Adds what was drawn; the action, or None if the episode has run out of tokens in it."""
        play.said = whole_text(play.said, grown)
        play.response = play.response + grown.tokens
        play.logprobs = play.logprobs + grown.logprobs
        play.tokens_left -= len(grown.tokens)
        if grown.finish == "length" and min(play.tokens_left, self._room(play)) <= 0:
            play.finish = "length"
            return None
        if grown.finish != "stop":
            return play.said
        tokenizer = self.engine.tokenizer
        before = play.prompt + play.response[: play.start]
        own = play.response[play.start :]
        whole = continuation_text(tokenizer, before, decode(tokenizer, before), own)
        stops = sorted(self.engine.sample_config.stop, key=len)
        return next((x for s in stops if whole.startswith(x := play.said + s)), play.said)

    def answered(self, play: Play, action: str, answer: Observation, key: str | None) -> None:
        """Ends a turn with what the environment answered."""
        drawn = len(play.response)
        play.turns_left -= 1
        if answer.done:
            play.finish = "stop"
        elif answer.truncated or min(play.turns_left, play.tokens_left) <= 0:
            play.finish = "length"
        elif len(answer.text) > MOST_CHARACTERS:
            play.finish = "length"
        else:
            ids = self._observed(answer.text, play.response[-1])
            if len(ids) > play.observed_left or len(ids) >= self._room(play):
                play.finish = "length"
            else:
                play.observed_left -= len(ids)
                play.response = play.response + ids
                play.logprobs = play.logprobs + [0.0] * len(ids)
        rest = action, answer.text, answer.reward, key
        play.turns.append(Turn(drawn, len(play.response), *rest))
        play.said = ""

    def _observed(self, text: str, last: int) -> list[int]:
        """The ids of an observation, after a turn that ended with the token `last`."""
        tokenizer, chat = self.engine.tokenizer, self._chat
        return encode_within(tokenizer, chat.around(text, last) if chat else text)

    def episode(self, play: Play) -> Episode:
        ends, rewards = self._steps(play, self.cfg.reward.truncated)
        return Episode(
            problem_id=play.problem.id,
            prompt=play.prompt,
            response=play.response,
            logprobs=play.logprobs,
            text=response_text(self.engine.tokenizer, play.prompt, play.response),
            finished=play.finish != "length",
            reward=outcome(play, self.cfg.reward.truncated),
            step_ends=ends,
            step_rewards=rewards,
            turns=tuple(play.turns),
        )

    def _steps(self, play: Play, truncated: float | None) -> tuple[list[int], list[float]]:
        """([C] step ends, [C] rewards of steps beside the outcome's).

        Steps are those of the task's `split` within each turn, whose last one has the observation.
        """
        ends: list[int] = []
        rewards: list[float] = []
        start = 0
        pieces = [(turn.drawn, turn.end, turn.action, turn.reward) for turn in play.turns]
        if play.start < len(play.response):
            pieces.append((len(play.response), len(play.response), play.said, 0.0))
        for drawn, end, text, reward in pieces:
            own = play.prompt + play.response[:start], play.response[start:drawn]
            inner = self.graded.step_ends(self.engine.tokenizer, *own, text)[:-1]
            ends += [start + i for i in inner] + [end]
            rewards += [0.0] * len(inner) + [reward]
            start = end
        if _is_outcome_the_last(play, truncated):
            rewards[-1] = 0.0
        return ends, rewards


def outcome(play: Play, truncated: float | None) -> float:
    """The reward of the action that ended an episode; `truncated` where it ran out of something."""
    if _is_outcome_the_last(play, truncated):
        return play.turns[-1].reward
    return truncated or 0.0


def _is_outcome_the_last(play: Play, truncated: float | None) -> bool:
    """Whether the outcome's reward is that of the last action, which then is none of a step's."""
    is_over = play.finish != "length" or truncated is None
    return is_over and bool(play.turns) and play.start == len(play.response)


def _places(plays: Sequence[Play]) -> Places:
    """The plays' tokens as trunks, equal ones once."""
    numbers: dict[tuple[int, ...], int] = {}
    of_branches = [numbers.setdefault(tuple(play.tokens), len(numbers)) for play in plays]
    return Places([list(tokens) for tokens in numbers], of_branches)


def _num_drawn(play: Play) -> int:
    return len(play.response) - sum(turn.end - turn.drawn for turn in play.turns)


def _numbered(states: list[State], counts: list[int]) -> list[tuple[State, int]]:
    """(state, k) of all continuations to be drawn, k counting those that it has."""
    pairs = zip(states, counts, strict=True)
    return [(s, len(s.drawn) + k) for s, count in pairs for k in range(count)]


def _turns_before(state: State) -> list[Turn]:
    """The turns of a state's episode that have ended before it."""
    return [turn for turn in state.episode.turns if turn.end <= state.used]
