"""What tests of the model share."""

import pytest


@pytest.fixture
def stand_in(monkeypatch):
    """A CPU in place of a GPU that has the kernels; the test is skipped without Triton."""
    from tests.model.kernels.stand_in import in_place_of_a_gpu  # Triton is imported where it is used

    with in_place_of_a_gpu(monkeypatch) as made:
        yield made
