"""What the libraries under us are told before they are imported: no telemetry, no spinning, and no lines about what we tell ourselves."""

from __future__ import annotations

import logging
import os

SETTINGS = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # Threads of torch that wait for each other give their core away. By default they spin, which is a sixth faster on an idle machine
    # and several times slower as soon as anything else wants a core: an engine, an environment, a second run.
    "OMP_WAIT_POLICY": "passive",
}


def quiet_libraries() -> None:
    """Set what the user has not set otherwise."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(logging.ERROR)
