"""Print the tasks of a verifiers v1 taskset as JSON lines for `flywheel import tasks`.

python tasks.py TASKSET [HOW_MANY] > tasks.jsonl
"""

from __future__ import annotations

import itertools
import json
import sys

from verifiers.v1 import TasksetConfig
from verifiers.v1.utils.loaders import load_taskset

taskset, count = load_taskset(TasksetConfig(id=sys.argv[1])), int(sys.argv[2]) if len(sys.argv) > 2 else None
for task in itertools.islice(taskset, count):
    prompt = task.data.prompt
    question = prompt if isinstance(prompt, str) else "\n".join(str(message.content) for message in prompt or ())
    print(json.dumps({"id": task.data.idx, "question": question or f"Task {task.data.idx}."}))
