import pytest

from endings import ok, refused
from sparsegroup.reporting import page

__all__ = ["ok", "refused"]


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of so small a run's time; `tests/reporting` shows them."""
    monkeypatch.setattr(page, "render_report", lambda *arguments: "the report")
