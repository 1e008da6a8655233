"""Graders, the rule for each kind of answer, and verifiers, which judge a trajectory's answer, final state or rewards."""
