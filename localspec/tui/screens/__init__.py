"""The app's screens, one module each."""

from __future__ import annotations
