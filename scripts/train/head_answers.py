"""Answers of a target to many prompts at a time.

The hidden states that a head reads are recorded too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from head_shards import SEQUENCE_TOKENS, Conversation, ShardWriter, answered, own_tokens
from numpy.typing import NDArray

from localspec.llama.hidden_states import LayerHiddenStates
from localspec.llama.library import C
from localspec.llama.model import LlamaModel
from localspec.models.chat_template.jinja_render import render
from localspec.protocol.wire import ChatMessage, ContextSettings

SEQUENCES = 96
PROMPT_TOKENS = 400
ANSWER_TOKENS = 400
FOLLOW_UPS = 0.15
"""Share of the conversations with a second question."""
TEMPERATURES = (0.0, 0.0, 0.0, 0.6, 0.8, 0.8, 0.8, 1.0)
"""Drawn for each conversation; the other sampling settings are localspec's defaults."""
TOP_K = 40
TOP_P = 0.95
MIN_P = 0.05
LOOP_LENGTHS = range(1, 48)
LOOP_TOKENS = 96
"""An answer that repeats its end for so many tokens has ended."""


# --- the target -----------------------------------------------------------------------


class BatchedTarget:
    """A model with many sequences in one context, its tokenizer, template and samplers."""

    def __init__(
        self, path: Path, layers: Sequence[int], threads: int, seed: int
    ) -> None:
        settings = ContextSettings(n_ctx=SEQUENCE_TOKENS, n_gpu_layers=0)
        self.model = LlamaModel(path, settings)
        params = C.llama_context_default_params()
        params.n_ctx = SEQUENCES * SEQUENCE_TOKENS
        params.n_seq_max = SEQUENCES
        params.kv_unified = False  # a pass over all sequences keeps its rows in order
        params.n_batch = SEQUENCE_TOKENS
        params.n_ubatch = SEQUENCE_TOKENS
        params.n_threads = threads
        params.n_threads_batch = threads
        self.context = C.llama_init_from_model(self.model.handle, params)
        if not self.context:
            raise SystemExit(f"llama.cpp cannot make a context for {path}")
        self.memory = C.llama_get_memory(self.context)
        self.hidden_states = LayerHiddenStates(self.context, self.model, layers)
        self.batch = C.llama_batch_init(SEQUENCE_TOKENS, 0, 1)
        self.samplers = {t: sampler(t, seed) for t in set(TEMPERATURES)}

    def close(self) -> None:
        for chain in self.samplers.values():
            C.llama_sampler_free(chain)
        C.llama_batch_free(self.batch)
        C.llama_free(self.context)
        self.model.close()

    def decode(
        self, rows: Sequence[tuple[int, int, int]], *, all_outputs: bool
    ) -> None:
        """Decode rows of (token, position, sequence).

        The last row gets logits; or all rows get logits and the final hidden states.
        """
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = all_outputs or i == len(rows) - 1
        C.llama_set_embeddings(self.context, all_outputs)
        status = C.llama_decode(self.context, batch)
        if status:
            raise SystemExit(f"llama_decode failed: {status}")

    def final_states(self, n: int) -> NDArray[np.float16]:
        address = C.llama_get_embeddings(self.context)
        rows = np.ctypeslib.as_array(address, (n * self.model.n_embd,))
        return rows.reshape(n, -1).astype(np.float16)

    def sample(self, row: int, temperature: float) -> int:
        return int(
            C.llama_sampler_sample(self.samplers[temperature], self.context, row)
        )

    def forget(self, sequence: int) -> None:
        C.llama_memory_seq_rm(self.memory, sequence, -1, -1)

    def render(self, messages: Sequence[tuple[str, str]]) -> str:
        """The prompt's text without the BOS that the tokenizer adds."""
        vocabulary = self.model.vocabulary
        chat = [ChatMessage(*message) for message in messages]
        special = vocabulary.special_texts()
        text = render(self.model.chat_template(), chat, special).text
        if not vocabulary.add_bos:
            return text
        return text.removeprefix(special["bos_token"])

    def tokenize(self, text: str, *, continued: bool = False) -> list[int]:
        """`continued`: the text follows another, so it has no BOS."""
        vocabulary = self.model.vocabulary
        tokens = vocabulary.tokenize(text)
        if continued and vocabulary.add_bos:
            return tokens[1:]
        return tokens

    def text(self, tokens: Sequence[int]) -> str:
        pieces = (self.model.vocabulary.piece(t) for t in tokens)
        return b"".join(pieces).decode("utf-8", "replace")


def sampler(temperature: float, seed: int) -> Any:
    chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
    stages = [C.llama_sampler_init_greedy()]
    if temperature > 0:
        stages = [
            C.llama_sampler_init_top_k(TOP_K),
            C.llama_sampler_init_top_p(TOP_P, 1),
            C.llama_sampler_init_min_p(MIN_P, 1),
            C.llama_sampler_init_temp(temperature),
            C.llama_sampler_init_dist(seed),
        ]
    for stage in stages:
        C.llama_sampler_chain_add(chain, stage)
    return chain


# --- answering ------------------------------------------------------------------------


class Answering:
    """Keeps all sequences of a target busy with prompts."""

    def __init__(
        self,
        target: BatchedTarget,
        prompts: Iterator[tuple[int, str]],
        *,
        greedy: bool,
        seed: int,
    ) -> None:
        self.target = target
        self.prompts = prompts
        self.greedy = greedy
        self.rng = random.Random(seed)
        self.questions = dict[int, str]()
        self.live = dict[int, Conversation]()

    def run(self, follow_ups: Sequence[str]) -> Iterator[Conversation | None]:
        """Ended conversations; None after each pass."""
        for sequence in range(SEQUENCES):
            self.begin(sequence)
        while self.live:
            self.step()
            for sequence, conversation in list(self.live.items()):
                if conversation.next_token >= 0:
                    continue
                if conversation.turns_left and self.ask(
                    sequence, self.rng.choice(follow_ups)
                ):
                    continue
                yield conversation
                self.begin(sequence)
            yield None

    def begin(self, sequence: int) -> None:
        """Start the next prompt in this sequence, if there is one."""
        self.live.pop(sequence, None)
        self.target.forget(sequence)
        for number, prompt in self.prompts:
            tokens = self.target.tokenize(self.target.render([("user", prompt)]))
            if len(tokens) > PROMPT_TOKENS:
                continue
            temperature = 0.0 if self.greedy else self.rng.choice(TEMPERATURES)
            conversation = Conversation(number, temperature, answer_left=ANSWER_TOKENS)
            conversation.turns_left = self.rng.random() < FOLLOW_UPS and not self.greedy
            self.questions[sequence] = prompt
            self.live[sequence] = conversation
            self.read(sequence, tokens)
            return

    def read(self, sequence: int, tokens: list[int]) -> None:
        """Decode given tokens and sample the answer's first."""
        conversation = self.live[sequence]
        start = len(conversation.tokens)
        rows = [(token, start + i, sequence) for i, token in enumerate(tokens)]
        self.target.decode(rows, all_outputs=False)
        states = self.target.hidden_states.states(len(rows))
        conversation.states.append(states.astype(np.float16))
        conversation.tokens += tokens
        conversation.own += [False] * len(tokens)
        conversation.next_token = self.target.sample(
            len(rows) - 1, conversation.temperature
        )

    def step(self) -> None:
        """One token of each live sequence.

        Those whose answer has ended get the next_token -1.
        """
        live = sorted(self.live.items())
        rows = [(c.next_token, len(c.tokens), sequence) for sequence, c in live]
        self.target.decode(rows, all_outputs=True)
        states = self.target.hidden_states.states(len(rows)).astype(np.float16)
        finals = self.target.final_states(len(rows))
        for row, (_, conversation) in enumerate(live):
            conversation.tokens.append(conversation.next_token)
            conversation.own.append(True)
            conversation.states.append(states[row : row + 1])
            conversation.finals.append(finals[row : row + 1])
            conversation.answer_left -= 1
            ended = self.target.model.vocabulary.is_eog(conversation.next_token)
            if not ended and has_ended(conversation):
                ended = True
                conversation.turns_left = 0
            if ended:
                conversation.next_token = -1
            else:
                token = self.target.sample(row, conversation.temperature)
                conversation.next_token = token

    def ask(self, sequence: int, question: str) -> bool:
        """Continue the chat.

        False if there is no room, or if the template rewrites earlier turns.
        """
        conversation = self.live[sequence]
        conversation.turns_left = 0
        prompt = self.questions[sequence]
        answer = self.target.text(conversation.tokens[conversation.own.index(True) :])
        before = self.target.render([("user", prompt)]) + answer
        after = self.target.render(
            [("user", prompt), ("assistant", answer), ("user", question)]
        )
        end = self.target.model.vocabulary.token_text(conversation.tokens[-1]).decode()
        if not after.startswith(before + end):
            return False
        tokens = self.target.tokenize(after[len(before + end) :], continued=True)
        room = SEQUENCE_TOKENS - len(conversation.tokens) - len(tokens)
        if room < ANSWER_TOKENS // 4:
            return False
        conversation.answer_left = min(ANSWER_TOKENS, room - 1)
        self.read(sequence, tokens)
        return True


def has_ended(conversation: Conversation) -> bool:
    """Whether the answer is too long, or repeats itself."""
    if conversation.answer_left <= 0 or len(conversation.tokens) >= SEQUENCE_TOKENS - 1:
        return True
    if conversation.answer_left % 16:
        return False
    end = conversation.tokens[-LOOP_TOKENS:]
    long_enough = conversation.n_own >= LOOP_TOKENS
    return long_enough and any(end[n:] == end[:-n] for n in LOOP_LENGTHS)


# --- the stage ------------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerPlan:
    folder: Path
    prompts: Sequence[str]
    follow_ups: Sequence[str] = ()
    limit: int | None = None
    """Own tokens in all shards, after which no conversation begins."""


def write_answers(target: BatchedTarget, plan: AnswerPlan) -> None:
    """Answer the prompts that no shard holds yet; greedily if there are no follow-ups."""
    done = answered(plan.folder)
    writer = ShardWriter(plan.folder)
    n_before = own_tokens(plan.folder)
    total = n_before
    began = time.process_time()

    def left() -> Iterator[tuple[int, str]]:
        for number, prompt in enumerate(plan.prompts):
            if number not in done and (plan.limit is None or total < plan.limit):
                yield number, prompt

    answering = Answering(target, left(), greedy=not plan.follow_ups, seed=len(done))
    for conversation in answering.run(plan.follow_ups):
        if conversation is None:
            continue
        total += conversation.n_own
        if writer.add(conversation):
            speed = (total - n_before) / max(time.process_time() - began, 1e-9)
            now = f"{plan.folder.name}: {total:,} own tokens, {speed:.0f} a CPU second"
            print(f"{time.strftime('%H:%M:%S')} {now}", flush=True)
    writer.flush()
    print(f"{plan.folder.name}: {total:,} own tokens, finished", flush=True)
