"""Running programs of a model where they can do no harm.

- `sandbox.py` has `Sandbox`, which runs jobs in one of four ways, many at a time.
- `kernel.py` confines a process by the kernel, `child.py` forks confined processes, and `pool.py`
  keeps processes that run `child.py`.
- `outside.py` uses another program, or a service, as the sandbox.
- `probes.py` tries to do harm in the sandbox. A run starts only if all attempts fail.
- `runner.py` runs a job in any sandbox, and encodes values as JSON.
"""
