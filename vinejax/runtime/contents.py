"""What a workdir must hold for a run to go on there: nothing missing, nothing of the wrong kind."""

from etils import epath

from vinejax.core.errors import WorkdirError

FOLDERS = (
    *("checkpoints", "best", "episodes", "tensorboard", "warmup", "eval", "credit", "export"),
    *("alive", "adapters", "vines"),
)
FILES = (
    *("config.json", "metrics.jsonl", "report.html", "status.json", "wandb_id", "prompt_time"),
    *("dropped_problems.json", "dropped_examples.json"),
)
OF_A_RUN = ("checkpoints", "best", "metrics.jsonl", "episodes")  # never without config.json
TRAINED = b'"stage": "train"'  # in a record of metrics.jsonl


def check_contents(folder: epath.Path, is_remote: bool) -> None:
    """Raises WorkdirError for a workdir that was changed from outside, so that no run can go on.

    It may have a file in the place of a folder, or the reverse, or lack `config.json` beside what a
    run wrote, or `checkpoints/` beside metrics of iterations. An object store has no folders, and
    there only `config.json` is looked for.
    """
    if not is_remote:
        for name in (*FOLDERS, *FILES):
            path = folder / name
            if path.exists() and path.is_dir() != (name in FOLDERS):
                kind = "a file" if name in FOLDERS else "a folder"
                rule = f"is {kind}, and a run needs the name; move it away"
                raise WorkdirError(f"{path}: {rule}, or choose another --workdir")
    if not (folder / "config.json").exists():
        found = [name for name in OF_A_RUN if (folder / name).exists()]
        if found:
            rule = f"is missing, so nothing tells which run {found[0]} is of; put it back"
            raise WorkdirError(f"{folder / 'config.json'}: {rule}, or choose another --workdir")
    metrics = folder / "metrics.jsonl"
    if is_remote or (folder / "checkpoints").exists() or not metrics.exists():
        return
    if TRAINED in metrics.read_bytes():
        rule = "is missing, and metrics.jsonl has iterations; put it back, or move metrics.jsonl"
        raise WorkdirError(f"{folder / 'checkpoints'}: {rule} away to begin anew")
