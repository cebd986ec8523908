"""How hard Hypothesis searches: briefly in `make check`, longer in `make test`.

A failure prints the example; the seed it prints replays it.
"""

import os

from hypothesis import HealthCheck, settings

# No deadline: these machines are noisy, and a slow example is not a wrong one.
settings.register_profile("quick", max_examples=20, deadline=None, print_blob=True)
settings.register_profile(
    "thorough",
    max_examples=600,
    stateful_step_count=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
