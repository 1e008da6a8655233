"""How each version of the weights comes to the engines, and onto the disk. All of them are in the engines' dtype.

    files       every version is written into a folder of its own, and the engines load that
    a transfer  the engines are sent it, and no file is written, but for two reasons:
                an engine can have it in no other way (it is starting, or the transfer broke off): the folder is written at once;
                a checkpoint stands behind it: the folder is written beside the training, and is what engines that start later load
    adapters    where engines serve them, a version is the folder of its adapters alone, of which engines are sent the files

A folder bears its name when it is whole, so that whoever kills this process leaves no half of one.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl.policies.adapters import save_adapters
from rl.policies.policy import as_saved, copied, in_dtype, save_policy
from warehouse.drafts import drafted, is_draft, remove_folder

if TYPE_CHECKING:
    from rl.engines.weight_sender import WeightSender

WEIGHTS = "weights"
"""The folder of the versions, below that of the policy which is trained."""
WEIGHTS_KEPT = 2
"""Versions that stay on disk, so that an engine that starts again finds the one it is told to load."""


class WeightPublisher:
    """Publishes the versions of one training run, one after the other."""

    def __init__(self, output: Path, tokenizer: PreTrainedTokenizerBase, dtype: str, sender: WeightSender | None) -> None:
        """Write folders below `output`, in the engines' `dtype`; `sender` sends versions, where they are sent."""
        self._folder = output / WEIGHTS
        self._tokenizer = tokenizer
        self._dtype = dtype
        self._sender = sender
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="weights")
        self._record: tuple[int, Future[None]] | None = None
        """The version that is being written beside the training."""
        self._first = True

    def publish(self, policy: PreTrainedModel, weights: Mapping[str, Tensor], version: int, record: bool) -> Path | None:
        """Bring `weights` of `policy` to the engines as `version`; with `record` its folder is written also where no engine needs it.

        Returns the folder that the engines must load; None where they have been sent the weights.

        Raises:
            OSError: a folder cannot be written, this one or the last that was written beside the training.
        """
        self._begin()
        self._announce()
        given = in_dtype(weights, self._dtype)
        if self._sender is None or not self._sender.send(as_saved(policy, given), self._place(version), version):
            self._finish_record()
            self._write(policy, given, version)
            self._forget()
            return self._place(version)
        if record:
            self._finish_record()
            own = copied(given)  # the next step changes these
            self._record = version, self._writer.submit(self._write, policy, own, version)
        return None

    def publish_adapters(self, config: Any, weights: Mapping[str, Tensor], version: int) -> Path:
        """The folder of the adapters of the policy that training began with, with peft's configuration of them, as `version`.

        Raises:
            OSError: their folder cannot be written.
        """
        self._begin()
        given = in_dtype(weights, self._dtype)
        with drafted(self._place(version)) as draft:
            save_adapters(config, given, draft)
        self._forget()
        return self._place(version)

    def close(self) -> None:
        """Wait for what is being written. Raises OSError where it could not be."""
        try:
            self._finish_record()
        finally:
            self._writer.shutdown()

    def _begin(self) -> None:
        """Delete what an earlier process left, for it is of later versions, or of no whole one."""
        if self._first:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._first = False

    def _write(self, policy: PreTrainedModel, weights: Mapping[str, Tensor], version: int) -> None:
        with drafted(self._place(version)) as draft:
            save_policy(policy, self._tokenizer, draft, weights, self._dtype)

    def _finish_record(self) -> None:
        """Wait for what is being written, and announce it."""
        if self._record is not None:
            wait([self._record[1]])
            self._announce()

    def _announce(self) -> None:
        """Have engines that start from now on load the last record, if it has been written by now."""
        if self._record is None or not self._record[1].done():
            return
        (version, written), self._record = self._record, None
        written.result()
        if self._sender is not None:
            self._sender.record(self._place(version), version)
        self._forget()

    def _forget(self) -> None:
        """Delete the folders of older versions."""
        whole = sorted(folder for folder in self._folder.iterdir() if not is_draft(folder))
        for old in whole[:-WEIGHTS_KEPT]:
            remove_folder(old)

    def _place(self, version: int) -> Path:
        return self._folder / f"{version:06d}"
