"""A program that chats until it is killed; it prints what has been saved.

python -m tests.chat.writer FILE SEED      on standard output, a line each, flushed:
sent CHAT TURN QUESTION                    after `sent` came back
heard CHAT TURN TOKENS                     after so many tokens of the answer were heard
ended CHAT TURN TOKENS                     after `ended` came back
"""

import random
import sys
from pathlib import Path

from localspec.chat.conversation import Conversation
from localspec.chat.history import ChatHistory
from localspec.chat.recorder import ChatRecorder
from localspec.protocol.events import GenerationFinished, Prefill
from tests.chat.saved_chats import PAIR, spoken


def main(file: str, seed: str) -> None:
    dice = random.Random(int(seed))
    history = ChatHistory.open(Path(file))
    while True:
        conversation = Conversation(dice.randrange(99))
        recorder = ChatRecorder(conversation, history, PAIR)
        for _ in range(dice.randrange(1, 8)):
            one_turn(conversation, recorder, dice)
        recorder.close()


def one_turn(
    conversation: Conversation, recorder: ChatRecorder, dice: random.Random
) -> None:
    moves = ["ask", "again", "edit", "undo"] if conversation.turns else ["ask"]
    move = dice.choice(moves)
    if move == "undo":
        conversation.undo()
        recorder.save_metadata()
        return
    question = f"q{dice.randrange(10**9)} " * dice.randrange(1, 40)
    if move == "ask":
        turn = conversation.ask(question)
    elif move == "again":
        turn = conversation.retry()
    else:
        turn = conversation.edit_turn(dice.choice(conversation.turns).id, question)
    answer = recorder.record_question()
    say("sent", recorder, turn.id, turn.question.split()[0])
    tokens = 0
    answer.add(Prefill(1, 1, 0))
    for n in range(dice.randrange(120)):
        event = spoken(f"t{n} ", n)
        answer.add(event)
        recorder.record_progress()
        tokens += len(event.tokens)
        say("heard", recorder, turn.id, tokens)
    if dice.random() < 0.9:
        answer.add(GenerationFinished("eog"))
        recorder.finish_answer()
        say("ended", recorder, turn.id, tokens)


def say(what: str, recorder: ChatRecorder, turn: int, more: object) -> None:
    print(what, recorder.chat_id, turn, more, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
