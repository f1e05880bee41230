"""Each pair drafts with what it has beside real tiny targets: the text is the target's.

A model that takes drafts back wrongly says something else; a head that does drafts worse, which
only its rows show, and how often a head that was fitted to the text is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec import launch, speculation_methods
from localspec.engine.session import Session
from localspec.errors import IncompatiblePairError, ModelFileError, UsageError
from localspec.models import draft_heads
from localspec.models.gguf import reader
from localspec.protocol.wire import GenerateCommand, LoadCommand, ProbeCommand, SamplingParams
from tests.engine.freshness import check_rows
from tests.support import fitted_heads, head_models, head_targets
from tests.support.fake_models import GREEDY
from tests.support.long_cases import often
from tests.support.sessions import (
    SETTINGS,
    loaded,
    require_same_logits_at_every_width,
    say,
    say_like_plain,
)
from tests.support.tinygguf import Model
from tests.support.zoo import Zoo

PROMPT = "the one "


def test_a_wide_draft_is_cut_to_what_a_hybrid_can_take_back(zoo: Zoo) -> None:
    load = LoadCommand(str(zoo["hybrid"]), str(zoo["stranger"]), SETTINGS, SETTINGS, draft_max=4)
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
    assert {*draft_heads.KIND_TITLES, "model", "lookup", "crossvocab"} == set(
        speculation_methods.DRAFTERS
    )
    with loaded(zoo[target], zoo[draft] if draft else None) as session:
        assert session.ready.settings["draft_kind"] == kind
        assert session.ready.draft == (zoo[draft].name if draft else None)
        assert not session.ready.notices
        for name in speculation_methods.DRAFTERS:
            if name in has:
                assert say(session, PROMPT, spec=name, max_tokens=5).ids
                continue
            with pytest.raises(UsageError) as refused:
                say(session, PROMPT, spec=name, max_tokens=5)
            assert f"Use one of: {', '.join(('auto', 'off', *has))}." in refused.value.hint
        with pytest.raises(UsageError, match="Unknown speculation method 'magic'"):
            say(session, PROMPT, spec="magic")


N_FITTED = 120
"""Tokens after the prompt that a fitted head has seen."""
BLOCKS = ("dflash", "dspark")
CHAINS = {
    "mtp": head_models.mimo2,
    "chain": lambda: head_models.mimo2(n_mtp=3),
    "step35": head_models.step35,
    "hy_v3": head_models.hy_v3,
}
"""Models with MTP layers inside."""
TARGETS = {kind: kind for kind in CHAINS} | {
    "mimo": "mimo",
    "mtp": "mimo",
    "assistant": "gemma4",
    "sliding": "sliding",
    "hybrid-cousin": "hybrid",
}
"""Those of heads that do not draft for `deep`, and of models that do not for `target`."""
DRAFTS = {
    "cousin": "model",
    "hybrid": "model",
    "recurrent": "model",
    "eagle3": "eagle3",
    "eagle3-own": "eagle3",
    "eagle3-reduced": "eagle3",
    "mimo": "mtp",
    "chain": "mtp",
    "assistant": "mtp",
    "dflash": "dflash",
    "dspark": "dspark",
    "dflash2": "dflash",
}
"""Drafts and their kinds; the heads have random weights, `mimo` is its own."""
FITTED = {
    "eagle3": 0.7,
    "mtp": 0.4,
    "chain": 0.4,
    "step35": 0.4,
    "hy_v3": 0.4,
    "assistant": 0.3,
    "dflash": 0.3,
    "dflash2": 0.3,
    "dspark": 0.3,
}
"""The acceptance rate of drafts of three tokens at least: a wrong row, state or position loses no
token, only this."""


@dataclass
class HeadPair:
    kind: str
    target: Path
    head: Path


def fit_head(zoo: Zoo, kind: str, folder: Path) -> HeadPair:
    target = zoo[TARGETS.get(kind, "deep")]
    with loaded(target) as session:
        said = say(session, PROMPT, spec="off", max_tokens=N_FITTED).ids
    text = [*fitted_heads.ids(target, PROMPT), *said]
    if kind in CHAINS:
        model = head_models.quantised(CHAINS[kind]())
        path = fitted_heads.taught_inside(model, text, folder)
        return HeadPair("mtp", path, path)
    if kind == "assistant":
        model = head_models.quantised(head_models.assistant(head_targets.gemma4(), 192))
        return HeadPair("mtp", target, fitted_heads.taught(target, model, text, folder))
    if kind == "eagle3":
        model = head_models.eagle3(n_embd=128)
    else:
        model = head_models.block(markov=kind == "dspark")
    if kind == "dspark":
        for name in ("markov_w1", "markov_w2"):  # what they add is not fitted
            model.tensors[f"{name}.weight"][:] = 0.0
    path = fitted_heads.taught(target, model, text, folder)
    if kind == "dflash2":  # what its selector adds is not fitted
        head_models.with_selector(model).tensors["selector_successor.weight"] *= 0.1
        path = model.write(folder / "selector.gguf")
    return HeadPair(kind.removesuffix("2"), target, path)


@pytest.fixture(scope="module")
def pairs(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], HeadPair]:
    """Pairs by the name of the draft: one of DRAFTS, or "fitted" and a kind of head."""

    @cache
    def get(name: str) -> HeadPair:
        if name.startswith("fitted"):
            pair = fit_head(zoo, name.split()[1], tmp_path_factory.mktemp("fitted"))
        else:
            kind = DRAFTS.get(name, "model")
            target = zoo[TARGETS.get(name, "target" if kind == "model" else "deep")]
            pair = HeadPair(kind, target, zoo[name])
        require_same_logits_at_every_width(pair.target)
        return pair

    return get


ALL = (*DRAFTS, *(f"fitted {kind}" for kind in ("eagle3", "mtp", "chain", "assistant")))


@pytest.fixture(scope="module", params=ALL)
def pair(
    request: pytest.FixtureRequest, pairs: Callable[[str], HeadPair]
) -> Iterator[tuple[str, Session]]:
    found = pairs(request.param)
    with loaded(found.target, found.head) as session:
        yield found.kind, session


def test_the_text_is_that_of_plain_decoding(pair: tuple[str, Session]) -> None:
    """Greedy or sampled, also where a longer draft is asked for than a block has rows."""
    kind, session = pair
    penalised = SamplingParams(0.8, seed=1, repeat_penalty=1.1)
    for sampling in (GREEDY, SamplingParams(0.8, seed=0), penalised):
        asked: dict[str, Any] = {"sampling": sampling, "max_tokens": 50}
        answers = say_like_plain(session, "model", lengths=(1, 3, 8), **asked)
        for length, said in zip((1, 3, 8), answers, strict=True):
            assert set(said.speculation["by_source"]) == {kind}
            longest = max(event.drafted for event in said.rounds)
            assert 0 < longest <= (min(length, 6) if kind in BLOCKS else length)
        for spec in (kind, "lookup", "auto"):
            say_like_plain(session, spec, **asked)
    for verify in ("match", "rejection", "block"):
        asked = {"verify": verify, "max_tokens": 40}
        (said,) = say_like_plain(session, probabilities=True, **asked)
        drafted = [event.tokens[0] for event in said.rounds if event.drafted]
        assert all(token.p_draft is not None for token in drafted)
        assert len(say(session, PROMPT, spec="model", sampling=penalised, **asked).ids) == 40


@pytest.mark.parametrize(
    ("name", "n_ctx"),
    [
        *((name, 256) for name in ("cousin", "hybrid-cousin", "fitted eagle3")),
        *((name, 1024) for name in ("sliding", "fitted mtp", "fitted chain", "fitted assistant")),
    ],
)
def test_answers_up_to_a_full_context(
    pairs: Callable[[str], HeadPair], name: str, n_ctx: int
) -> None:
    """Far beyond the cells of a sliding window."""
    found = pairs(name)
    with loaded(found.target, found.head, replace(SETTINGS, n_ctx=n_ctx)) as session:
        for spec, length in (("auto", 8), ("model", 16), ("lookup", 8)):
            (full,) = say_like_plain(session, spec, lengths=(length,), max_tokens=2000)
            assert full.reason == "context"
            assert full.totals["prompt_tokens"] + len(full.ids) == n_ctx


@pytest.mark.parametrize("kind", often(tuple(FITTED), FITTED.keys() - {"step35", "hy_v3"}))
def test_a_fitted_head_is_often_right(pairs: Callable[[str], HeadPair], kind: str) -> None:
    """Also after measuring, and after a turn that did not draft."""
    found = pairs(f"fitted {kind}")
    with loaded(found.target, found.head) as session:
        said = say(session, PROMPT, spec="model", draft_length=3, max_tokens=N_FITTED - 4)
        list(session.probe(ProbeCommand(0.2)))
        (measured,) = session.measured_costs()
        say(session, PROMPT, spec="off", max_tokens=60)  # more states than wait at once
        again = say(session, PROMPT, spec="model", draft_length=3, max_tokens=N_FITTED - 4)
        longer = PROMPT + again.text[:40] + " and"
        after = say(session, longer, spec="model", max_tokens=20)
        assert after.ids == say(session, longer, spec="off", max_tokens=20).ids
    assert said.speculation["acceptance_rate"] > FITTED[kind]
    assert again.speculation["acceptance_rate"] == said.speculation["acceptance_rate"]
    assert measured.c is not None
    assert after.totals["reused_tokens"] > 3


@pytest.mark.parametrize(
    ("name", "times", "n_ubatch"),
    [
        ("eagle3", 9, 32),
        ("fitted eagle3", 9, 256),
        ("fitted mtp", 1, 32),
        ("fitted mtp", 9, 32),
        ("fitted chain", 9, 32),
        ("fitted assistant", 9, 32),
        ("dflash", 1, 32),
        ("dspark", 9, 32),
        ("dflash2", 9, 32),
    ],
)
def test_its_rows_are_those_of_a_fresh_head(
    pairs: Callable[[str], HeadPair], name: str, times: int, n_ubatch: int
) -> None:
    """Whatever was accepted and rejected before, over short and long prompts, in a second turn."""
    found = pairs(name)
    one = fitted_heads.opened(found.target, found.head, n_ubatch)
    check_rows(one, fitted_heads.opened(found.target, found.head), PROMPT * times)


MEMORIES = (
    "gpt-oss",  # a window in every other layer
    "lfm2",  # hybrid: short convolutions
    "qwen35",  # hybrid: linear attention
    "qwen3moe",  # attention
    "gemma4-e",  # windows, and layers that share keys and values
    "qwen35moe",  # hybrid, with experts
)
ATTENTION_LAYER = 3  # In the hybrids; their layer of MTP looks like it.
HEAD_MODELS: dict[str, Callable[..., Model]] = {
    "eagle3": head_models.eagle3,
    "dspark": lambda **of: head_models.block(markov=True, n_embd=of["n_embd"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("targets")


@pytest.fixture(scope="module", params=often(MEMORIES, tuple(MEMORIES)[:3]))
def target(request: pytest.FixtureRequest, folder: Path) -> Iterator[Path]:
    path = head_targets.target(request.param).write(folder / f"{request.param}.gguf")
    require_same_logits_at_every_width(path)
    yield path


def head_of(target: Path, kind: str) -> Model:
    """With random weights, from the first layers to the last."""
    header = reader.read(target)
    model = HEAD_MODELS[kind](n_embd=header.n_embd, of=header.n_embd)
    model.keys["target_layers"] = [1, header.n_layer // 2, header.n_layer - 1]
    return model


@pytest.mark.parametrize("kind", HEAD_MODELS)
def test_wrong_drafts_are_taken_back(target: Path, kind: str) -> None:
    """Drafts of a random head, nearly all of them; between them, other turns and lookup."""
    head = head_of(target, kind).write(target.with_suffix(f".{kind}.gguf"))
    with loaded(target, head) as session:
        for said in say_like_plain(session, kind, lengths=(1, 8), max_tokens=40):
            assert said.speculation["accepted"] < said.speculation["drafted"] / 2
        say_like_plain(session, "auto", PROMPT + said.text[:9] + "other", max_tokens=20)
        seed = SamplingParams(temperature=0.8, seed=1)
        say_like_plain(session, kind, sampling=seed, max_tokens=30)
    if kind == "eagle3":
        check_rows(fitted_heads.opened(target, head), fitted_heads.opened(target, head), PROMPT * 3)


def test_right_drafts_are_kept(target: Path, folder: Path) -> None:
    """A head that was fitted to what the target says is often right, and then wrong again."""
    with loaded(target) as session:
        said = say(session, PROMPT, spec="off", max_tokens=100).ids
    text = [*fitted_heads.ids(target, PROMPT), *said]
    head = fitted_heads.taught(target, head_of(target, "eagle3"), text, folder)
    with loaded(target, head) as session:
        (again,) = say_like_plain(session, "eagle3", lengths=(3,), max_tokens=110)
    # None of three, and all: each leaves another memory behind.
    kept = [event.accepted for event in again.rounds if event.drafted == 3]
    assert {0, 3} <= set(kept), kept


@dataclass
class PredictingModel:
    n_layers: int
    whole: Path
    target: Path
    layers: Path


@pytest.fixture(scope="module", params=often(["qwen35", "qwen35moe", "chain"], ["qwen35", "chain"]))
def predicting(request: pytest.FixtureRequest, folder: Path) -> PredictingModel:
    name = request.param
    place = folder / f"apart-{name}"
    place.mkdir()
    if name == "chain":
        model = head_models.quantised(head_models.mimo2(n_mtp=3))
        target = head_targets.without_layers(model)
    else:
        model = head_targets.with_layer(head_targets.target(name), ATTENTION_LAYER)
        target = head_targets.target(name)
    return PredictingModel(
        3 if name == "chain" else 8,
        model.write(folder / f"whole-{name}.gguf"),
        target.write(place / "model.gguf"),
        head_targets.layer_alone(model).write(place / "mtp-model.gguf"),
    )


def test_layers_inside_or_beside_are_the_same(predicting: PredictingModel) -> None:
    whole, target, layers = predicting.whole, predicting.target, predicting.layers
    found = launch.resolve_pair(str(whole), "auto")
    assert found.draft == found.target == whole
    assert launch.resolve_pair(str(whole), "none").draft is None
    assert launch.resolve_pair(str(target), "auto").draft == layers
    with pytest.raises(ModelFileError, match="is a draft head, not a complete model"):
        launch.resolve_pair(str(layers), "none")
    for trunk, head in ((whole, whole), (target, layers)):
        require_same_logits_at_every_width(trunk)
        with loaded(trunk, head) as session:
            lengths = (1, 3, 8)
            answers = say_like_plain(session, "mtp", lengths=lengths, max_tokens=40)
            for length, said in zip(lengths, answers, strict=True):
                assert set(said.speculation["by_source"]) == {"mtp"}
                longest = max(event.drafted for event in said.rounds)
                assert longest == min(length, predicting.n_layers)
    inside = fitted_heads.opened(whole, whole)
    check_rows(fitted_heads.opened(target, layers), inside, PROMPT * 3)


def test_such_a_layer_fits_its_own_alone(zoo: Zoo, folder: Path) -> None:
    model = head_targets.with_layer(head_targets.target("qwen35"), ATTENTION_LAYER)
    layer = head_targets.layer_alone(model).write(folder / "mtp-alone.gguf")
    shorter = head_targets.target("qwen35")
    shorter.keys["block_count"] = 3
    shorter.tensors = {k: v for k, v in shorter.tensors.items() if not k.startswith("blk.3.")}
    for other in (shorter, head_targets.target("lfm2")):
        path = other.write(folder / f"other-{other.arch}.gguf")
        with pytest.raises(IncompatiblePairError):
            launch.resolve_pair(str(path), str(layer))
    assert launch.resolve_pair(str(zoo["mimo"]), str(zoo["eagle3"])).draft == zoo["eagle3"]


@pytest.mark.parametrize("name", often(("dense", "gemma4", "gemma4-e"), ("gemma4-e",)))
def test_an_assistant_of_each_gemma(folder: Path, name: str) -> None:
    """Dense, with experts, and with layers that share keys and values."""
    target = head_targets.gemma4(name).write(folder / f"{name}.gguf")
    require_same_logits_at_every_width(target)
    head = head_models.assistant(head_targets.gemma4(name)).write(folder / f"mtp-{name}.gguf")
    with loaded(target, head) as session:
        for said in say_like_plain(session, "mtp", PROMPT * 9, (1, 3, 8), max_tokens=60):
            assert said.speculation["drafted"] > 0
    check_rows(fitted_heads.opened(target, head), fitted_heads.opened(target, head), PROMPT)


HISTORIES = (
    *("fitted chain", "fitted assistant", "hybrid-cousin", "recurrent", "fitted dflash2"),
    *("sliding", "granite", "fitted step35", "fitted hy_v3", "fitted eagle3", "fitted mtp"),
    *("fitted dflash", "fitted dspark", "trimmed", "reordered"),
)


@pytest.mark.parametrize("name", often(HISTORIES, HISTORIES[:7]))
def test_an_answer_after_any_history_is_that_of_a_fresh_session(
    pairs: Callable[[str], HeadPair], name: str, request: pytest.FixtureRequest
) -> None:
    check_histories(pairs(name), 500 if request.config.getoption("--long") else 60)


def check_histories(found: HeadPair, n: int) -> None:
    """Edits, branches, stops within a draft, cuts at the start of the text, and a second chat."""
    rng, other = np.random.default_rng(1), PROMPT + "x"
    text, kept = PROMPT, PROMPT

    def rounds(session: Session) -> tuple[list[int], list[tuple[int, int]]]:
        said = say(session, text, spec="model", draft_length=3, max_tokens=9)
        return said.ids, [(event.accepted, event.drafted) for event in said.rounds]

    with loaded(found.target, found.head) as session, loaded(found.target) as plain:
        for step in range(n):
            length = int(rng.integers(1, 6))
            said = say(session, text, spec="model", draft_length=length, max_tokens=9)
            assert said.ids == say(plain, text, spec="off", max_tokens=9).ids, step
            match int(rng.integers(6)):
                case 0:
                    text += said.text + "the"
                case 1:  # an edit
                    cut = int(rng.integers(1, len(text)))
                    text = text[:cut] + "abc"[: int(rng.integers(1, 4))] + text[cut + 1 :]
                case 2:
                    text, kept = kept, text
                case 3:  # stopped within a draft
                    command = GenerateCommand(text + "on", GREEDY, spec="model", max_tokens=30)
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
                with loaded(found.target, found.head) as fresh:
                    assert rounds(session) == rounds(fresh), step
