"""The loop's tests learn on the toy policy of the trainers' tests, on one thread like them."""

from tests.rl.learner.conftest import one_thread as one_thread
from tests.rl.learner.conftest import policy as policy
