"""What the libraries under us are told before they are imported: no telemetry, and no lines about what we tell ourselves."""

from __future__ import annotations

import logging
import os
import warnings

QUIET = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def quiet_libraries() -> None:
    """Set what the user has not set otherwise."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    # TRL names the vLLM versions that its own generation was tested with; ours does not go through it.
    warnings.filterwarnings("ignore", message="TRL currently supports vLLM")
