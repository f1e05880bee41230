"""Commands and answers are read as they were written."""

import json
from typing import get_args

import pytest

from localspec.protocol import wire
from localspec.protocol.events import Alternative, TokenScore

MESSAGES = (
    wire.ChatMessage("system", "Be brief."),
    wire.ChatMessage("user", 'é "\n\ud800'),
)
SAID = (wire.ChatMessage("assistant", "hi", (7, 8)),)
COMMANDS: list[wire.EngineCommand] = [
    wire.LoadCommand(
        "a.gguf",
        "b.gguf",
        wire.ContextSettings(tensor_split=(3.0, 1.0), cpu_moe=-1),
        measured=wire.MeasuredCosts(
            2.0, {"1": 1.0}, survival={"greedy": {"model": [[1, 2]]}}
        ),
    ),
    wire.LoadCommand("a.gguf"),
    wire.LoadCommand(
        "a.gguf", projector=wire.ProjectorSettings("mmproj.gguf", False, 256)
    ),
    wire.GenerateCommand("hi", wire.SamplingParams(seed=3), stop=("a", "b")),
    wire.GenerateCommand(
        messages=MESSAGES, template="chatml", think=False, probabilities=True
    ),
    wire.GenerateCommand(
        "hi", prior_messages=SAID, resumed_tokens=(3, 4), think_budget=0
    ),
    wire.GenerateCommand(
        sampling=wire.SamplingParams(
            presence_penalty=0.5, logit_bias=((3, -1.5), (4, 2.0))
        ),
        prompt_tokens=(1, 2),
        n_alternatives=20,
        prediction="hi",
    ),
    wire.ProbeCommand(),
    wire.ReplayCommand(
        "hi",
        tokens=(1, 2),
        widths=(3,),
        emitted=(4,),
        sampling=wire.SamplingParams(temperature=0),
    ),
    wire.GenerateCommand(
        messages=(
            wire.ChatMessage(
                "user", "\ufdd6hi", images=(wire.PictureRef("/tmp/a", "00ff", "a.png"),)
            ),
        )
    ),
    wire.CountCommand("hi"),
    wire.CountCommand(messages=MESSAGES, template="llama3"),
    wire.CountCommand("hi", prior_messages=SAID),
    wire.TokenizeCommand("hi", pieces=True),
    wire.InspectCommand(messages=MESSAGES, tokens=(1, 2)),
    wire.ScoreDraftCommand(wire.GenerateCommand("hi", stop=("a",)), (1, 2), "lookup"),
    wire.StopCommand(),
]
SCORE = TokenScore(0.5, 1, (Alternative(8, "x", 0.25, 2, was_drafted=True),))
REPLIES: list[wire.CommandReply] = [
    wire.HelloReply(1, 2),
    wire.HeartbeatReply(0.5),
    wire.LoadProgress("reading", "small.gguf", 0.25),
    wire.FailureReply("usage", "why", "hint", "t"),
    wire.DoneReply(),
    wire.MeasuredCosts(2.0, {"1": 1.0}, c=0.5),
    wire.MeasuredCosts(2.0, {"1": 1.0}, pictures=wire.PictureSpeed("a.gguf", 7.5)),
    wire.ReplayResult((1,), (0.5,), (0.0,), (0.1,)),
    wire.CountResult(7),
    wire.CountResult(7, 1.5),
    wire.TokenizeResult((1, 2), ("h", "\xff")),
    wire.InspectResult((SCORE,)),
    wire.DraftScore((16, 16), (0, 3)),
]


def test_commands_are_read_as_they_were_written() -> None:
    assert {type(each) for each in COMMANDS} == set(get_args(wire.EngineCommand))
    for command in COMMANDS:
        line = wire.encode_command(3, command)
        assert line.count(b"\n") == 1

        number, read = wire.decode_command(line)

        assert number == 3
        assert json.loads(wire.encode_command(3, read)) == json.loads(line)
        # The acceptance counts of a load are of any type: lists stay lists.
        if not isinstance(command, wire.LoadCommand):
            assert read == command


def test_replies_are_read_as_they_were_written() -> None:
    assert {type(each) for each in REPLIES} == set(get_args(wire.CommandReply))
    for reply in REPLIES:
        assert wire.decode_output(wire.encode_output(3, reply)) == (3, reply)


def test_what_is_no_command_is_refused() -> None:
    for body in [
        [],
        {"cmd": "generate"},
        {"cmd": "nonsense", "id": 1},
        {"cmd": "generate", "id": 1, "sampling": 3},
        {"cmd": "generate", "id": 1, "messages": [3]},
        {"cmd": "generate", "id": 1, "messages": [{"role": "user"}]},
    ]:
        line = json.dumps(body).encode()
        with pytest.raises(ValueError):
            wire.decode_command(line)
