"""What every test shares: how hypothesis behaves, and that logs go where pytest keeps them."""

import structlog
from hypothesis import HealthCheck, settings

# Found examples are printed so that they can be kept; no deadline, because test machines stall.
settings.register_profile(
    "tms", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tms")

structlog.configure(
    processors=[structlog.stdlib.add_log_level, structlog.processors.KeyValueRenderer()],
    wrapper_class=structlog.stdlib.BoundLogger,
    logger_factory=structlog.stdlib.LoggerFactory(),
)
