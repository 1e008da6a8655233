"""Measurements and experiments, one command each: `python -m benchmarks.NAME --help`. What came of them is in docs/.

Each runs in the environment of `flywheel`'s own commands, so that torch's threads do not spin where two of them share a machine.
"""

from flows.runtime import quiet_libraries

quiet_libraries()
