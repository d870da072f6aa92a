"""Dotted paths of the sections of settings and of the hooks that `vinejax/tools` implements.

`vinejax/core/accessories.py` reads these tables.
"""

SECTIONS = {
    "bench": "vinejax.tools.bench.settings.BenchConfig",
    "doctor": "vinejax.tools.doctor.settings.DoctorConfig",
    "plan": "vinejax.tools.plan.settings.PlanConfig",
    "serve": "vinejax.tools.serve.settings.ServeConfig",
}
HOOKS = {
    "page": "vinejax.tools.report.live.LivePage",
    "mesh_row": "vinejax.tools.plan.propose.with_row_for_devices",
    "start_check": "vinejax.tools.doctor.doctor_mode.check_start",
}
