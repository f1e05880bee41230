"""What the chat screen does at the moment, which its widgets show."""

from __future__ import annotations

from typing import Literal

ChatPhase = Literal["loading", "ready", "answering", "inspecting", "failed"]
"""`inspecting`: the probabilities of the last answer are computed."""
