"""What is known to be right, or wrong, before a byte of weights is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from localspec.fit import facts
from localspec.fit.report import Fit
from localspec.fit.subject import Subject
from localspec.models import heads
from localspec.models.catalog import Pair
from localspec.models.pairing import Verdict
from localspec.tui.wizard import words


@dataclass(frozen=True, slots=True)
class Check:
    """`good` None: it will be seen at the download."""

    good: bool | None
    words: str


@dataclass(frozen=True, slots=True)
class Refined:
    """What the headers of a pair's files say."""

    subject: Subject
    match: Verdict | None = None
    """Of what must be the same in both; None: there is no draft, or a header was only drawn."""

    @property
    def read(self) -> bool:
        """Whether both headers are those of the files."""
        subject = self.subject
        return all(part.source != "shape" for part in (subject.target, subject.draft) if part)


def refined(subject: Subject) -> Refined:
    """Compares the vocabularies, which takes some tens of milliseconds."""
    target, draft = subject.headers
    known = Refined(subject)
    if draft is None or not known.read:
        return known
    return Refined(subject, heads.judge(target, draft))


def checks(
    pair: Pair, fit: Fit | None, subject: Subject | None, known: Refined | None
) -> tuple[Check, ...]:
    """In the order in which people ask."""
    return tuple(
        check
        for check in (
            _vocabularies(pair, known.match if known else None),
            _fits(fit),
            _memory(subject),
            _licence(pair),
        )
        if check is not None
    )


def _vocabularies(pair: Pair, match: Verdict | None) -> Check | None:
    if pair.draft is None:
        return None
    if pair.kind in heads.NAMES:
        return _head(heads.NAMES[pair.kind], match)
    if match is None:
        return Check(None, "vocabularies: compared before the download")
    if match.compatible:
        return Check(True, "vocabularies match")
    return Check(False, f"vocabularies differ: {match.detail}")


def _head(name: str, match: Verdict | None) -> Check:
    if match is None:
        return Check(None, f"{name} head: compared with its target before the download")
    if match.compatible:
        return Check(True, f"{name} head fits its target")
    return Check(False, f"{name} head does not fit: {match.detail}")


def _fits(fit: Fit | None) -> Check | None:
    if fit is None or fit.verdict == "unknown":
        return None
    at = f"context {words.context(fit.load.target_settings.n_ctx)}"
    good = fit.verdict != "no"
    return Check(good, f"{'fits' if good else 'does not fit'} with {at}")


def _memory(subject: Subject | None) -> Check | None:
    """Whether the target can forget a wrong guess."""
    if subject is None:
        return None
    about = facts.of(subject.target.header)
    if not about.keeps_state:
        return Check(True, "hybrid memory: no")
    if about.rolls_back:
        return Check(True, "hybrid memory: takes guesses back")
    return Check(False, "hybrid memory: cannot take a guess back, no speculation")


def _licence(pair: Pair) -> Check:
    models: Iterator[str | None] = (m.licence for m in (pair.target, pair.draft) if m)
    if all(models):
        return Check(True, f"licence {words.licences(pair)}")
    return Check(None, "licence: on its page")
