"""TRL's trainers, without their own generation by vLLM: that would import vLLM, half of the time that a learner takes to start."""

from unittest.mock import patch

with patch("trl.import_utils.is_vllm_available", return_value=False):
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

__all__ = ["GRPOConfig", "GRPOTrainer", "SFTConfig", "SFTTrainer"]
