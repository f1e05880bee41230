"""The example messages of an empty chat, and how they are asked."""

import pytest

from localspec.chat import examples
from localspec.chat.conversation import Conversation
from localspec.chat.examples import CODE_EXAMPLE, EXAMPLES, Example
from localspec.chat.settings import ChatSettings, LoadedModel, build_request
from localspec.protocol.wire import GenerateCommand

CHAT = LoadedModel(n_ctx=4096, template="own")
COMPLETION = LoadedModel(n_ctx=4096)
DEFAULTS = ChatSettings()


def request(
    question: str, settings: ChatSettings = DEFAULTS, loaded: LoadedModel = CHAT
) -> GenerateCommand:
    conversation = Conversation(1)
    conversation.ask(question)
    return build_request(settings, conversation, loaded)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_speculates_whatever_auto_has_measured(example: Example) -> None:
    """Otherwise a busy computer decides whether a first answer shows anything."""
    assert request(example.message).spec == example.spec == "lookup"
    assert request(example.message).why
    assert request(f"{example.message} Please.").spec == "auto"


@pytest.mark.parametrize("spec", ["off", "model", "eagle3"])
def test_a_drafter_that_was_chosen_drafts_for_examples_too(spec: str) -> None:
    settings = ChatSettings(spec=spec)
    assert request(EXAMPLES[0].message, settings).spec == spec


def test_the_code_example_ends_before_it_repeats_itself() -> None:
    assert request(CODE_EXAMPLE.message, loaded=COMPLETION).max_tokens == 25
    limited = ChatSettings(max_tokens=99)
    assert request(CODE_EXAMPLE.message, limited, COMPLETION).max_tokens == 99
    assert request("def f():", loaded=COMPLETION).max_tokens == 256


def test_only_a_message_that_is_sent_as_it_is_is_an_example() -> None:
    assert examples.find(EXAMPLES[0].message) is EXAMPLES[0]
    assert examples.find(CODE_EXAMPLE.message) is CODE_EXAMPLE
    assert examples.find("") is None
    assert examples.find("Hello") is None


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_task_of_an_example_is_not_done_yet(example: Example) -> None:
    _, _, text = example.message.partition("\n\n")
    assert not example.is_right(text)
