"""`--mode=doctor`, and the same look before the first iteration of a new run."""

import os

from vinejax.core.errors import DivergedError, UserError
from vinejax.core.settings import Config
from vinejax.methods import sft
from vinejax.methods.compose import method_of
from vinejax.model.decoder import Params
from vinejax.runtime.checkpoint import find_policy, restore_policy
from vinejax.runtime.distributed import barrier, is_writer
from vinejax.session.session import Session
from vinejax.tools.doctor.finding import Finding
from vinejax.tools.doctor.findings import findings_of
from vinejax.tools.doctor.look import look_at
from vinejax.tools.doctor.settings import DoctorConfig
from vinejax.tools.doctor.show import report
from vinejax.training.startup import has_checkpoint, open_session

START = "the start"


def examine(cfg: Config, path: str | os.PathLike) -> list[Finding]:
    """`--mode=doctor`: prints a look at the newest checkpoint, or at the start, and the findings.

    Nothing is recorded, so that settings may be changed afterwards. Raises UserError, with the
    first finding that stops a run, if there is one.
    """
    with open_session(cfg, path, splits=("train",), records=False) as session:
        checkpoint = find_policy(session.workdir, "last")
        if checkpoint is None:
            params, source = session.load_reference(), START
        else:
            folder = session.workdir / checkpoint[0]
            trained, source = restore_policy(folder, session.fresh_params())
            params = session.weights(trained)
        found = looked_at(session, params, source)
    if is_writer() and not found:
        print("doctor: nothing is wrong")
    barrier("the end")
    raise_first(found, "")
    return found


def check_start(session: Session) -> None:
    """Looks at a run that is about to train, unless it resumes or `doctor.before_training` is off.

    The method 'sft' learns from no reward, so its runs are left out. Raises UserError, on all
    hosts, with the first finding that stops a run.
    """
    cfg = session.cfg
    is_off = not DoctorConfig.of(cfg).before_training or cfg.iterations == 0
    if is_off or method_of(cfg) is sft.METHOD or has_checkpoint(session.workdir):
        return
    try:
        found = looked_at(session, session.load_reference(), START)
    except DivergedError:
        return  # the run's own first samples raise it, with what to do
    raise_first(found, "; --config.doctor.before_training=False trains all the same")


def looked_at(session: Session, params: Params, source: str) -> list[Finding]:
    """The findings, which are printed below what was seen; `source` is the policy as text.

    The first finding that stops a run is not printed, because it becomes the run's error.
    """
    look = look_at(session, params)
    found = findings_of(look)
    error = next((x for x in found if x.stops), None)
    if is_writer():
        for line in report(look, [x for x in found if x is not error], source):
            print(line, flush=True)
    return found


def raise_first(found: list[Finding], remedy: str) -> None:
    """Raises UserError with the first finding that stops a run, if there is one."""
    for finding in found:
        if finding.stops:
            raise UserError(f"doctor: {finding.line}{remedy}")
