"""The doctor's report."""

from localspec.doctor.findings import Finding
from localspec.report.doctor import format_findings, summarize_problems
from localspec.report.lines import plain_text

FINDINGS = (
    Finding("versions", "engine", "ok", "localspec 1", fix="never shown"),
    Finding("slow-build", "engine", "notice", "it is slow", fix="rebuild it"),
    Finding("little-room", "disk", "warning", "2 GB free"),
)


def test_findings_stand_below_their_area_with_sign_and_fix() -> None:
    assert [plain_text(line) for line in format_findings(FINDINGS)] == [
        "engine",
        "  ✓ localspec 1",
        "  · it is slow",
        "      rebuild it",
        "",
        "disk",
        "  ! 2 GB free",
        "",
        "1 warning, 1 notice; ✗ error, ! warning, · notice.",
    ]


def test_a_screen_reader_gets_words_instead_of_signs() -> None:
    lines = [plain_text(line) for line in format_findings(FINDINGS, plain=True)]
    assert lines[1:3] == ["  localspec 1", "  notice: it is slow"]
    assert lines[-1] == "1 warning, 1 notice."


def test_a_report_without_problems_says_so() -> None:
    healthy = FINDINGS[:1]
    *_, last = format_findings(healthy)
    assert plain_text(last) == "No problems found."
    assert summarize_problems(healthy) == "No problems found"
