"""What a screen reports: errors, notices, what has been copied or written.

An error's hint names an option. The command line shows it as `--ctx 4096`, the app as "a
context of 4096": a user of the app does not type options.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from textual.app import App
from textual.screen import Screen

from localspec import extras, temporary_files
from localspec.chat import copying
from localspec.errors import LocalspecError, OptionHint, render_hint
from localspec.protocol.events import Notice
from localspec.sanitize import sanitize
from localspec.tui.scheduling import JobQueue
from localspec.tui.text.wrapping import one_line, slice_text

_OPTION_WORDS: dict[str, tuple[str, str]] = {  # Without and with a value.
    "ctx": ("context", "a context of {}"),
    "kv": ("KV cache", "a KV cache in {}"),
    "gpu_layers": ("layers on the GPU", "{} layers on the GPU"),
    "flash_attn": ("flash attention", "flash attention {}"),
    "spec": ("/spec", "/spec {}"),
    "draft": ("a draft", "{} as the draft"),
    "verify": ("/set verify", "/set verify {}"),
    "max_tokens": ("/set max_tokens", "/set max_tokens {}"),
    "exact": ("/set exact on", "/set exact {}"),
    "cpu_moe": ("experts in RAM", "the experts of {} layers in RAM"),
    "verbose": ("ctrl+l", ""),
    "anyway": ("", ""),  # A chat offers /anyway itself.
    **dict(extras.rows("OPTION_WORDS")),
}
_VALUE_WORDS = {
    ("draft", "none"): "no draft model",
    ("draft", "FILE"): "your own draft model",
    ("draft_gpu_layers", "0"): "the draft model on the CPU",
    ("threads", "1"): "one thread",
}


def screen_hint(hint: str) -> str:
    return render_hint(hint, _option_words)


def _option_words(option: OptionHint) -> str:
    words = _VALUE_WORDS.get((option.name, option.value))
    if words is not None:
        return words
    if option.name not in _OPTION_WORDS:
        return str(option)
    name, with_value = _OPTION_WORDS[option.name]
    return with_value.format(option.value) if option.value else name


def problem_text(problem: LocalspecError | Notice) -> str:
    text = f"{problem.message} {screen_hint(problem.hint)}"
    return one_line(text).strip()


def show_notice(screen: Screen[Any], notice: Notice) -> None:
    severity = "information" if notice.level == "info" else notice.level
    screen.notify(problem_text(notice), severity=severity, markup=False, timeout=8)


BACKGROUND_JOBS = JobQueue("background")


def run_in_background(app: App[Any], work: Callable[[], str]) -> None:
    """Runs work on a thread, and notifies of the line that it returns, or of its error.

    For work that takes as long as the chat, or that waits for another program: keys are
    read meanwhile.
    """

    def job() -> None:
        message = work()
        app.call_later(app.notify, message, markup=False)

    def show_failure(error: LocalspecError) -> None:
        app.notify(problem_text(error), severity="warning", markup=False, timeout=8)

    BACKGROUND_JOBS.submit(app, job, failed=show_failure)


def copy_text(app: App[Any], select: Callable[[], str]) -> None:
    """Copies the selected text, sanitized, and notifies; `select` runs on a thread.

    Without a clipboard the text goes to a file, which the notification names.
    """
    write: Callable[[str], object] | None = None
    if app._driver is not None:
        write = partial(app.call_later, app._driver.write)

    def work() -> str:
        text = "".join(map(sanitize, slice_text(select())))
        message = copying.copy(text, write)
        if message:
            return message
        file = temporary_files.write_copied_text(text)
        return f"No clipboard found. The text was saved to {file}"

    run_in_background(app, work)
