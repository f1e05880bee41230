"""A program that chats for ever, to be killed: it says what it was told is safe.

python -m tests.chat.writer FILE SEED      on standard output, a line each, flushed:
sent CHAT TURN QUESTION                    after `sent` came back
heard CHAT TURN TOKENS                     after so many tokens of the answer were heard
ended CHAT TURN TOKENS                     after `ended` came back
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from localspec.chat.conversation import Conversation
from localspec.chat.history import History
from localspec.chat.keeping import Keeper
from localspec.protocol.events import Finished, Prefill
from tests.chat.talk import PAIR, spoken


def main(file: str, seed: str) -> None:
    dice = random.Random(int(seed))
    history = History.open(Path(file))
    while True:
        conversation = Conversation(dice.randrange(99))
        keeper = Keeper(conversation, history, PAIR)
        for _ in range(dice.randrange(1, 8)):
            one_turn(conversation, keeper, dice)
        keeper.close()


def one_turn(conversation: Conversation, keeper: Keeper, dice: random.Random) -> None:
    moves = ["ask", "again", "edit", "undo"] if conversation.turns else ["ask"]
    move = dice.choice(moves)
    if move == "undo":
        conversation.undo()
        keeper.moved()
        return
    question = f"q{dice.randrange(10**9)} " * dice.randrange(1, 40)
    if move == "ask":
        turn = conversation.ask(question)
    elif move == "again":
        turn = conversation.again()
    else:
        turn = conversation.edit(dice.choice(conversation.turns).id, question)
    keeper.sent(turn)
    say("sent", keeper, turn.id, turn.question.split()[0])
    tokens = 0
    keeper.heard([Prefill(1, 1, 0)])
    for n in range(dice.randrange(120)):
        event = spoken(f"t{n} ", n)
        conversation.hear([event])
        keeper.heard([event])
        tokens += len(event.tokens)
        say("heard", keeper, turn.id, tokens)
    if dice.random() < 0.9:
        conversation.hear([Finished("eog")])
        keeper.heard([Finished("eog")])
        keeper.ended()
        say("ended", keeper, turn.id, tokens)


def say(what: str, keeper: Keeper, turn: int, more: object) -> None:
    print(what, keeper.chat, turn, more, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
