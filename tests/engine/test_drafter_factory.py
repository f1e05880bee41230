"""Each pair drafts with what it has beside real tiny targets: the text is the target's.

A model that takes drafts back wrongly says something else; a head that does drafts
worse, which only its rows show, and which of its tokens are accepted.
"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from localspec import draft_kinds, launch
from localspec.engine.session import Session
from localspec.errors import IncompatiblePairError, ModelFileError, UsageError
from localspec.models.gguf import reader
from localspec.protocol.wire import GenerateCommand, LoadCommand, ProbeCommand
from tests.spec.freshness import HOT, check_rows
from tests.support import head_models, head_targets, heads_beside
from tests.support.fake_models import GREEDY
from tests.support.long_cases import bulk, often
from tests.support.sessions import (
    SETTINGS,
    loaded,
    require_same_logits_at_every_width,
    say,
    say_like_plain,
)
from tests.support.zoo import Zoo

PROMPT = "the one "


def test_a_wide_draft_is_cut_to_what_a_hybrid_can_take_back(zoo: Zoo) -> None:
    load = LoadCommand(
        target=str(zoo["hybrid"]),
        draft=str(zoo["stranger"]),
        target_settings=SETTINGS,
        draft_settings=SETTINGS,
        draft_max=4,
    )
    with closing(Session(load)) as session:
        (said,) = say_like_plain(session, lengths=(16,), max_tokens=40)
    assert max(event.drafted for event in said.rounds) == 4


@pytest.mark.parametrize(
    ("target", "draft", "kind", "has"),
    [
        ("target", None, None, ("lookup",)),
        ("target", "cousin", "model", ("model", "lookup")),
        ("deep", "eagle3", "eagle3", ("model", "lookup", "eagle3")),
        ("deep", "dspark", "dspark", ("model", "lookup", "dspark")),
    ],
)
def test_every_drafter_is_had_or_refused_by_name(
    zoo: Zoo, target: str, draft: str | None, kind: str | None, has: tuple[str, ...]
) -> None:
    file = zoo[draft] if draft else None
    file_name = file.name if file else None
    with loaded(zoo[target], file) as session:
        assert session.ready.settings["draft_kind"] == kind
        assert session.ready.draft == file_name
        assert not session.ready.notices
        for name in draft_kinds.kinds():
            if name in has:
                assert say(session, PROMPT, spec=name, max_tokens=5).ids
                continue
            with pytest.raises(UsageError) as refused:
                say(session, PROMPT, spec=name, max_tokens=5)
            possible = ", ".join(("auto", "off", *has))
            assert f"Use one of: {possible}." in refused.value.hint
        with pytest.raises(UsageError, match="Unknown speculation method 'magic'"):
            say(session, PROMPT, spec="magic")


BLOCKS = ("dflash", "dspark")
PAIRS = {
    **{
        name: ("model", "target")
        for name in ("cousin", "hybrid", "recurrent", "granite")
    },
    "reordered": ("model", "target"),
    "sliding": ("model", "sliding"),
    "hybrid-cousin": ("model", "hybrid"),
    **{name: ("eagle3", "deep") for name in ("eagle3", "eagle3-own", "eagle3-reduced")},
    **{name: ("mtp", name) for name in ("mimo", "chain", "step35", "hy_v3")},
    "assistant": ("mtp", "gemma4"),
    **{
        name: (name.removesuffix("2"), "deep")
        for name in ("dflash", "dspark", "dflash2")
    },
}
"""By the draft's name its kind and its target; the heads have random weights."""


@dataclass
class Pair:
    kind: str
    target: Path
    draft: Path


def pair_of(zoo: Zoo, name: str) -> Pair:
    kind, target = PAIRS[name]
    require_same_logits_at_every_width(zoo[target])
    return Pair(kind, zoo[target], zoo[name])


MAIN = (
    *("cousin", "hybrid", "recurrent", "eagle3", "eagle3-own", "eagle3-reduced"),
    *("mimo", "chain", "assistant", "dflash", "dspark", "dflash2"),
)


@pytest.mark.parametrize("name", MAIN)
def test_the_text_is_that_of_plain_decoding(zoo: Zoo, name: str) -> None:
    """A longer draft may be asked for than a block has rows.

    The drafts are the same after measuring, and after a turn that did not draft.
    """
    pair = pair_of(zoo, name)
    max_length = 6 if pair.kind in BLOCKS else 8
    penalised = replace(
        HOT, repeat_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.3
    )
    with loaded(pair.target, pair.draft) as session:
        # with "auto", a head may read the text's end only
        first = hot_rounds(session, PROMPT)
        for sampling in (GREEDY, HOT, penalised):
            asked: dict[str, Any] = {"sampling": sampling, "max_tokens": 30}
            answers = say_like_plain(session, "model", lengths=(1, 3, 8), **asked)
            for length, said in zip((1, 3, 8), answers, strict=True):
                assert set(said.speculation["by_source"]) == {pair.kind}
                longest = max(event.drafted for event in said.rounds)
                assert 0 < longest <= min(length, max_length)
            say_like_plain(session, ("lookup", "auto"), **asked)
        for verify in ("match", "rejection", "block"):
            asked = {"verify": verify, "max_tokens": 30}
            (said,) = say_like_plain(session, probabilities=True, **asked)
            drafted = [event.tokens[0] for event in said.rounds if event.drafted]
            assert all(token.p_draft is not None for token in drafted)
            said = say(session, PROMPT, spec="model", sampling=penalised, **asked)
            assert len(said.ids) == 30
        list(session.probe(ProbeCommand(0.1)))
        (measured,) = session.measured_costs()
        assert measured.c is not None
        say(session, PROMPT, spec="off", max_tokens=60)  # more states than wait at once
        assert hot_rounds(session, PROMPT) == first


def hot_rounds(session: Session, text: str) -> list[tuple[int, int, list[int]]]:
    said = say(session, text, spec="model", sampling=HOT, draft_length=3, max_tokens=30)
    return [
        (event.accepted, event.drafted, [token.id for token in event.tokens])
        for event in said.rounds
    ]


@pytest.mark.parametrize(
    ("name", "n_ctx"),
    [
        *((name, 256) for name in ("cousin", "hybrid-cousin", "eagle3")),
        *((name, 1024) for name in ("sliding", "mimo", "chain", "assistant")),
    ],
)
def test_answers_up_to_a_full_context(zoo: Zoo, name: str, n_ctx: int) -> None:
    """Far beyond the cells of a sliding window; the prompt takes most of it."""
    pair = pair_of(zoo, name)
    specs = ("auto", "model", "lookup")
    text = PROMPT * (n_ctx // 5 + 10)
    asked: dict[str, Any] = {"sampling": HOT, "max_tokens": 2000}
    with loaded(pair.target, pair.draft, replace(SETTINGS, n_ctx=n_ctx)) as session:
        for full in say_like_plain(session, specs, text, (8,), **asked):
            assert full.reason == "context"
            assert len(full.ids) > 9
            assert full.totals["prompt_tokens"] + len(full.ids) == n_ctx


@pytest.mark.parametrize(
    ("name", "times", "n_ubatch"),
    [
        *(("eagle3", 9, 256), ("mimo", 1, 32), ("mimo", 9, 32), ("chain", 9, 32)),
        *(
            ("assistant", 9, 32),
            ("dflash", 1, 32),
            ("dspark", 9, 32),
            ("dflash2", 9, 32),
        ),
    ],
)
def test_its_rows_are_those_of_a_fresh_head(
    zoo: Zoo, name: str, times: int, n_ubatch: int
) -> None:
    """They do not depend on what was accepted and rejected before."""
    pair = pair_of(zoo, name)
    one = heads_beside.opened(pair.target, pair.draft, n_ubatch)
    check_rows(one, heads_beside.opened(pair.target, pair.draft), PROMPT * times)


MEMORIES = (
    "gpt-oss",  # a window in every other layer
    "lfm2",  # hybrid: short convolutions
    "qwen35",  # hybrid: linear attention
    "qwen3moe",  # attention
    "gemma4-e",  # windows, and layers that share keys and values
    "qwen35moe",  # hybrid, with experts
)
ATTENTION_LAYER = 3  # In the hybrids; their layer of MTP looks like it.


@pytest.fixture(scope="module", params=often(MEMORIES, tuple(MEMORIES)[:3]))
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("targets")
    path = head_targets.target(request.param).write(folder / f"{request.param}.gguf")
    require_same_logits_at_every_width(path)
    return path


@pytest.mark.parametrize("kind", ["eagle3", "dspark"])
def test_drafts_are_taken_back_or_kept(target: Path, kind: str) -> None:
    """Of a head with random weights; between them other turns, and lookup."""
    header = reader.read(target)
    if kind == "eagle3":
        model = head_models.eagle3(n_embd=header.n_embd, of=header.n_embd)
    else:
        model = head_models.block(markov=True, n_embd=header.n_embd)
    model.keys["target_layers"] = [1, header.n_layer // 2, header.n_layer - 1]
    head = model.write(target.with_suffix(f".{kind}.gguf"))
    with loaded(target, head) as session:
        say_like_plain(session, kind, lengths=(8,), max_tokens=40)
        said, _ = say_like_plain(
            session, kind, lengths=(3, 8), sampling=HOT, max_tokens=90
        )
        kept = {event.accepted for event in said.rounds if event.drafted == 3}
        assert kept >= {0, 3}, kept
        say_like_plain(session, "auto", PROMPT + said.text[:9] + "other", max_tokens=20)
    if kind == "eagle3":
        check_rows(
            heads_beside.opened(target, head),
            heads_beside.opened(target, head),
            PROMPT * 3,
        )


@pytest.mark.parametrize(
    "name", often(["qwen35", "qwen35moe", "chain"], ["qwen35", "chain"])
)
def test_layers_inside_or_beside_are_the_same(tmp_path: Path, name: str) -> None:
    if name == "chain":
        model = head_models.quantised(head_models.mimo2(n_mtp=3))
        without = head_targets.without_layers(model)
    else:
        without = head_targets.target(name)
        model = head_targets.with_layer(head_targets.target(name), ATTENTION_LAYER)
    (tmp_path / "apart").mkdir()
    whole = model.write(tmp_path / "whole.gguf")
    target = without.write(tmp_path / "apart" / "model.gguf")
    layers = head_targets.layer_alone(model).write(
        tmp_path / "apart" / "mtp-model.gguf"
    )
    max_length = 3 if name == "chain" else 8
    found = launch.resolve_pair(str(whole), "auto")
    assert found.draft == found.target == whole
    assert launch.resolve_pair(str(whole), "none").draft is None
    assert launch.resolve_pair(str(target), "auto").draft == layers
    with pytest.raises(ModelFileError, match="is a draft head, not a complete model"):
        launch.resolve_pair(str(layers), "none")
    for trunk, head in ((whole, whole), (target, layers)):
        require_same_logits_at_every_width(trunk)
        with loaded(trunk, head) as session:
            for said in say_like_plain(session, "mtp", lengths=(8,), max_tokens=40):
                assert set(said.speculation["by_source"]) == {"mtp"}
                assert max(event.drafted for event in said.rounds) == max_length
    inside = heads_beside.opened(whole, whole)
    check_rows(heads_beside.opened(target, layers), inside, PROMPT * 3)


def test_such_a_layer_fits_its_own_alone(zoo: Zoo, tmp_path: Path) -> None:
    model = head_targets.with_layer(head_targets.target("qwen35"), ATTENTION_LAYER)
    layer = head_targets.layer_alone(model).write(tmp_path / "mtp-alone.gguf")
    shorter = head_targets.target("qwen35")
    shorter.keys["block_count"] = 3
    shorter.tensors = {
        k: v for k, v in shorter.tensors.items() if not k.startswith("blk.3.")
    }
    for other in (shorter, head_targets.target("lfm2")):
        path = other.write(tmp_path / f"other-{other.arch}.gguf")
        with pytest.raises(IncompatiblePairError):
            launch.resolve_pair(str(path), str(layer))
    assert (
        launch.resolve_pair(str(zoo["mimo"]), str(zoo["eagle3"])).draft == zoo["eagle3"]
    )


@pytest.mark.parametrize("name", often(("dense", "gemma4", "gemma4-e"), ("gemma4-e",)))
def test_an_assistant_of_each_gemma(tmp_path: Path, name: str) -> None:
    """Dense, with experts, and with layers that share keys and values."""
    target = head_targets.gemma4(name).write(tmp_path / f"{name}.gguf")
    require_same_logits_at_every_width(target)
    head = head_models.assistant(head_targets.gemma4(name)).write(
        tmp_path / f"mtp-{name}.gguf"
    )
    with loaded(target, head) as session:
        for said in say_like_plain(session, "mtp", PROMPT * 9, (3, 8), max_tokens=40):
            assert said.speculation["drafted"] > 0
    check_rows(
        heads_beside.opened(target, head), heads_beside.opened(target, head), PROMPT
    )


HISTORIES = (
    *(
        "chain",
        "assistant",
        "hybrid-cousin",
        "recurrent",
        "dflash",
        "sliding",
        "granite",
    ),
    *("step35", "hy_v3", "eagle3", "mimo", "dflash2", "dspark", "reordered"),
)


@pytest.mark.parametrize("name", often(HISTORIES, HISTORIES[:7]))
def test_an_answer_after_any_history_is_that_of_a_fresh_session(
    zoo: Zoo, name: str, request: pytest.FixtureRequest
) -> None:
    n_steps = bulk(200, 500) if request.config.getoption("--long") else 40

    check_histories(pair_of(zoo, name), n_steps)


def check_histories(pair: Pair, n: int) -> None:
    """A history has edits, branches, stops within a draft, cuts, and a second chat."""
    rng = np.random.default_rng(1)
    text = PROMPT
    kept = PROMPT
    other = PROMPT + "x"
    with loaded(pair.target, pair.draft) as session, loaded(pair.target) as plain:
        for step in range(n):
            length = int(rng.integers(1, 6))
            asked: dict[str, Any] = {"sampling": HOT, "max_tokens": 9}
            said = say(session, text, spec="model", draft_length=length, **asked)
            assert said.ids == say(plain, text, spec="off", **asked).ids, step
            match int(rng.integers(6)):
                case 0:
                    text += said.text + "the"
                case 1:  # an edit
                    cut = int(rng.integers(1, len(text)))
                    typed = "abc"[: int(rng.integers(1, 4))]
                    text = text[:cut] + typed + text[cut + 1 :]
                case 2:
                    text, kept = kept, text
                case 3:  # stopped within a draft
                    command = GenerateCommand(
                        text + "on", HOT, spec="model", max_tokens=30
                    )
                    events = session.generate(command)
                    for _ in zip(range(int(rng.integers(1, 9))), events, strict=False):
                        pass
                    events.close()  # type: ignore[attr-defined]
                case 4:
                    text, other = other, text
                case _:
                    text = text[len(text) // 3 :] or PROMPT
            text = text if len(text) < 250 else text[100:]
            if step % 20 == 0:
                with loaded(pair.target, pair.draft) as fresh:
                    assert hot_rounds(session, text) == hot_rounds(fresh, text), step


@pytest.mark.parametrize(
    ("asked", "verify"),
    [
        ({"spec": "model"}, "block"),
        ({"spec": "auto"}, "block"),
        ({"spec": "lookup"}, "block"),
        ({"spec": "off"}, "coupled"),
        ({"spec": "auto", "draft_length": 0}, "coupled"),
        ({"spec": "model", "sampling": GREEDY}, "coupled"),
        ({"spec": "model", "verify": "rejection"}, "rejection"),
        ({"spec": "model", "verify": "coupled"}, "coupled"),
    ],
)
def test_the_verifier_that_accepts_the_most_is_chosen_where_it_gains(
    zoo: Zoo, asked: dict[str, Any], verify: str
) -> None:
    request: dict[str, Any] = {"verify": "auto", "sampling": HOT, **asked}
    with loaded(zoo["target"], zoo["cousin"]) as session:
        said = say(session, PROMPT, max_tokens=8, **request)
    assert said.totals["verify"] == verify


def test_overlapped_drafting_keeps_the_verifier_that_it_needs(zoo: Zoo) -> None:
    load = LoadCommand(
        target=str(zoo["target"]),
        draft=str(zoo["cousin"]),
        target_settings=SETTINGS,
        draft_settings=SETTINGS,
        overlap=True,
    )
    with closing(Session(load)) as session:
        said = say(session, PROMPT, spec="model", verify="auto", sampling=HOT)
        apart = say(
            session, PROMPT, spec="model", verify="auto", sampling=HOT, overlap=False
        )
    assert said.totals["verify"] == "coupled"
    assert apart.totals["verify"] == "block"
