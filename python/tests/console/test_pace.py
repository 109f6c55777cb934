"""The pace of pages that go on by themselves."""

from contextlib import ExitStack

import pytest

from tms.console.pace import SHARE, ViewerPace


def test_all_viewers_together_take_a_share_of_a_core() -> None:
    pace = ViewerPace(0.25)
    took_s = 0.01
    with ExitStack() as viewers:
        for _ in range(100):
            viewers.enter_context(pace.viewer())
            assert pace.pause_s(0) == 0.25
        assert 100 * took_s / pace.pause_s(took_s) == pytest.approx(SHARE)
    assert pace.viewers == 0


def test_a_viewer_that_fails_leaves() -> None:
    pace = ViewerPace(0.25)
    with pytest.raises(ValueError, match="lost"), pace.viewer():
        raise ValueError("lost")
    assert pace.viewers == 0
