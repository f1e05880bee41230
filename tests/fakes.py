"""The fake models, for tests that import them from here."""

from tests.support.fake_models import *  # noqa: F403
