"""What fills the terminal: one file a screen."""

from __future__ import annotations
