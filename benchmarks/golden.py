"""The golden gate: a change that should change no behaviour reproduces a run of another commit to the digit, on this machine.

    python -m benchmarks.golden --against HEAD~1          # the quickstart's first iteration, seed 0, in both trees: about ten minutes
    python -m benchmarks.golden --against HEAD~1 --profile tests/end_to_end/small.toml --turns 2

It compares tasks, examples, policies, sampled tokens, rewards, scores, losses and evaluations; computes every reward and score of the new
home again, row by row; and runs the tests of bit-exact resumption and of two workers that equal one. Results are kept by commit below
`runs/golden`, so that a commit runs once. Sums of floats differ between processors: both runs must be of one machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from flows.home import Home
from flows.stages.reinforcement import reward_context
from rl.rewards.reward import reward_trajectories
from warehouse import Lake, Trajectory
from warehouse.digests import digest

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "runs" / "golden"
TESTS = ("tests/rl/loop/test_reinforce.py", "tests/rl/loop/test_workers.py", "tests/rl/learner/test_critic.py", "-k", "resum or worker")
ROWS = {
    "tasks": "SELECT key, digest FROM tasks ORDER BY ALL",
    "examples": "SELECT id FROM examples ORDER BY ALL",
    "scores": "SELECT trajectory_id, verifier, version, value, verdict, error, read FROM scores ORDER BY ALL",
    "rewards": "SELECT id, outcome, stop_reason, horizon, reward FROM trajectories ORDER BY ALL",
    "tokens": "SELECT trajectory_id, index, action_ids, action_logprobs, observation_ids FROM turns ORDER BY trajectory_id, index",
    "losses": "SELECT run_id, step, name, value FROM metrics WHERE name IN ('loss', 'grad_norm', 'entropy') ORDER BY ALL",
}
"""What is compared by its digest, and how many rows it has."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", required=True, help="the commit whose behaviour is kept")
    parser.add_argument("--profile", default="quickstart")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--no-tests", action="store_true", help="leave the tests of resumption and of workers out")
    options = parser.parse_args()
    commit = _git("rev-parse", "--short=12", options.against)
    before = fingerprint(run(commit, options.profile, options.turns))
    home = run(None, options.profile, options.turns)
    after = fingerprint(home)
    differing = [name for name in before if before[name] != after.get(name)]
    for name, value in after.items():
        print(
            f"{'DIFFERS' if name in differing else 'same':8} {name:12} {value if name not in differing else f'{before[name]} -> {value}'}"
        )
    wrong = [*differing, *recomputed(home)]
    if not options.no_tests:
        wrong += ["tests"] * bool(subprocess.run([sys.executable, "-m", "pytest", "-q", *TESTS], cwd=ROOT).returncode)
    print(f"golden gate against {commit}: {'FAILED: ' + ', '.join(wrong) if wrong else 'passed'}")
    sys.exit(bool(wrong))


def run(commit: str | None, profile: str, turns: int) -> Path:
    """The home of a run of `commit`, kept from an earlier call where there is one; None: of this tree, always run anew."""
    name = f"{commit or 'tree'}-{Path(profile).stem}-{turns}"
    home, tree = KEPT / name, KEPT / "worktree" if commit else ROOT
    if commit is None:
        subprocess.run(["rm", "-rf", str(home)], check=True)
    elif not (home / "report.html").exists():
        _git("worktree", "add", "--force", "--detach", str(tree), commit)
    if not (home / "report.html").exists():
        command = [sys.executable, "-m", "flows.cli", "run", "--profile", profile, "--home", str(home), "--turns", str(turns)]
        try:
            subprocess.run(command, cwd=tree, check=True, env={**os.environ, "PYTHONPATH": str(tree)})
        finally:
            if commit is not None:
                _git("worktree", "remove", "--force", str(tree))
    return home


def fingerprint(home: Path) -> dict[str, Any]:
    """What a run made, by kind: a digest and a number of rows, or the figures themselves."""
    with Lake(home, read_only=True) as lake:
        rows = {name: lake.query(sql).to_pylist() for name, sql in ROWS.items()}
        made: dict[str, Any] = {name: f"{digest([list(row.values()) for row in each])} of {len(each)}" for name, each in rows.items()}
        made["policies"] = {policy.id: policy.weights_digest for policy in sorted(lake.policies(), key=lambda policy: policy.id)}
        sql = "SELECT policy, suite, round(100 * success, 1) AS success FROM evaluations WHERE hops IS NULL ORDER BY ALL"
        made["success"] = {f"{row['policy']}@{row['suite']}": row["success"] for row in lake.query(sql).to_pylist()}
    return made


def recomputed(home: Path) -> list[str]:
    """Trajectories of a home whose reward, outcome or score changes when recomputed."""
    config, wrong, count = Home(home).load(), list[str](), 0
    with Lake(home, read_only=True) as lake:
        tasks = {task.key: task for task in lake.tasks()}
        scores = {score.trajectory_id: score for score in lake.scores()}
        batches: dict[tuple[str, int, int], list[Trajectory]] = defaultdict(list)
        for trajectory in lake.trajectories():
            batches[trajectory.stage, trajectory.wheel_turn, trajectory.step or 0].append(trajectory)
        for (stage, turn, _), stored in batches.items():
            own = [tasks[trajectory.task_key] for trajectory in stored]
            rewards = config.for_turn(turn).rl.rewards
            context = reward_context(lake, rewards, own) if stage == "rl" else None
            verifiers = config.evaluation.open_verifiers(rewards.verifier if stage == "rl" else None)
            again = reward_trajectories(own, stored, verifiers, context)
            for old, new, score in zip(stored, again.trajectories, again.scores, strict=True):
                count += 1
                if (old.reward, old.outcome) != (new.reward, new.outcome) or score != scores[old.id]:
                    wrong.append(old.id)
    print(f"{'DIFFERS' if wrong else 'same':8} recomputed   rewards and scores of {count} trajectories; {len(wrong)} differ {wrong[:3]}")
    return ["recomputed rewards"] * bool(wrong)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
