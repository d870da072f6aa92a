"""Running programs of a model where they can do no harm.

- `sandbox.py` has `Sandbox`, which runs jobs in one of four ways, many at a time.
- `kernel.py` confines a process by the kernel, `child.py` forks such processes, and `pool.py` keeps
  the children.
- `outside.py` uses another program, or a service, as the sandbox.
- `probes.py` tries to do harm, which must fail before a run starts.
- `runner.py` runs a job in any sandbox, and has the JSON of values.
"""
