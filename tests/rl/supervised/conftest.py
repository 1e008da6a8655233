"""The toy policy of the learner's tests, on one thread like them."""

from tests.rl.learner.conftest import one_thread as one_thread
from tests.rl.learner.conftest import policy as policy
