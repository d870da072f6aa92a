"""Programs of a model, run where they can do no harm.

- `sandbox.py`: `Sandbox`, which runs jobs in one of four ways, many at a time.
- `kernel.py`: what the kernel refuses to a process; `child.py` forks such processes; `pool.py`
  keeps the children.
- `outside.py`: another program as the sandbox, or a service.
- `probes.py`: attempts at harm, which must fail before a run starts.
- `runner.py`: runs a job in whatever sandbox, and the JSON of values.
"""
