"""As in the launchers' tests, no variables of whoever starts the tests are seen."""

from tests.launch.conftest import no_variables  # noqa: F401
