"""Each pair drafts with what it has, as far as its target can take back."""

from __future__ import annotations

from contextlib import closing

import pytest

from localspec import speculation_methods
from localspec.engine.session import Session
from localspec.errors import UsageError
from localspec.models import draft_heads
from localspec.protocol.wire import LoadCommand
from tests.support.sessions import SETTINGS, loaded, say
from tests.support.zoo import Zoo

PROMPT = "the one "


def test_a_wide_draft_is_cut_to_what_a_hybrid_can_take_back(zoo: Zoo) -> None:
    load = LoadCommand(str(zoo["hybrid"]), str(zoo["stranger"]), SETTINGS, SETTINGS, draft_max=4)
    with closing(Session(load)) as session:
        said = say(session, PROMPT, spec="model", draft_length=16, max_tokens=40)
        plain = say(session, PROMPT, spec="off", max_tokens=40)
    assert max(event.drafted for event in said.rounds) == 4
    assert said.ids == plain.ids


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
    """What the pair has drafts; anything else is refused with the names of what it has."""
    assert {*draft_heads.KIND_TITLES, "model", "lookup", "crossvocab"} == set(
        speculation_methods.DRAFTERS
    )
    with loaded(zoo[target], zoo[draft] if draft else None) as session:
        assert session.ready.settings["draft_kind"] == kind
        for name in speculation_methods.DRAFTERS:
            if name in has:
                assert say(session, PROMPT, spec=name, max_tokens=5).ids
                continue
            with pytest.raises(UsageError) as refused:
                say(session, PROMPT, spec=name, max_tokens=5)
            assert f"Use one of: {', '.join(('auto', 'off', *has))}." in refused.value.hint
        with pytest.raises(UsageError, match="Unknown speculation method 'magic'"):
            say(session, PROMPT, spec="magic")
