"""Tests; the checks in these modules say what they compared when they fail."""

import pytest

pytest.register_assert_rewrite("tests.support.fake_models", "tests.spec.laws")
