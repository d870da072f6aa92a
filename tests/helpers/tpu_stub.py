"""A stub of `gcloud` for the tests of tpu/: a folder stands for a host, and bash for ssh.

On a host python3 is a stub, too; it installs a stub of uv, which makes a python.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from helpers.paths import REPO

ROOT = REPO
TPU = ROOT / "tpu"
SECRETS = {"WANDB_API_KEY": "wandb-secret", "HF_TOKEN": "hf secret 'with' $quotes\nand two lines"}

STUB = r"""#!/usr/bin/env bash
fake=FAKE
words="$*"
echo "$words" >>"$fake/calls"
value() { for word in "${all[@]}"; do [[ $word != "$1="* ]] || echo "${word#*=}"; done; }
all=("$@")
case $words in
  *"queued-resources describe"*)
    [[ -s $fake/queued ]] || { echo "NOT_FOUND: no such thing" >&2; exit 1; }
    cat "$fake/queued" ;;
  *"tpu-vm describe"*) cat "$fake/node" ;;
  *"queued-resources create"*) echo ACTIVE >"$fake/queued"; echo READY >"$fake/node" ;;
  *"queued-resources delete"*) rm "$fake/queued" ;;
  *"tpu-vm scp"*)
    for home in "$fake"/host/*; do cp -p "$5" "$home/${6#*:}"; done ;;
  *"tpu-vm ssh"*)
    for home in "$fake"/host/*; do
      [[ ! -e $home/unreachable ]] || continue
      (cd "$home" && HOME=$home bash -c "$(value --command)") \
        >"$(value --output-directory)/${home##*/}.log" 2>&1 </dev/null &
    done
    wait ;;
esac
"""


def stub(folder: Path, hosts: int = 0) -> Path:
    """A folder for PATH with a gcloud of `hosts` hosts, whose homes are in `folder`/host."""
    for host in range(hosts):
        (folder / f"host/{host}/vinejax/tpu").mkdir(parents=True)
        shutil.copy(TPU / "worker.sh", folder / f"host/{host}/vinejax/tpu")
    (folder / "bin").mkdir()
    (folder / "bin/gcloud").write_text(STUB.replace("FAKE", str(folder)), encoding="utf-8")
    (folder / "bin/gcloud").chmod(0o755)
    return folder / "bin"


PYTHON3 = r"""#!/usr/bin/env bash
mkdir -p ~/.local/bin
cat >~/.local/bin/uv <<'END'
#!/usr/bin/env bash
echo "$*" >>~/uv.calls
[[ $1 != venv ]] || { mkdir -p .venv/bin; ln -s ~/versions .venv/bin/python; }
END
chmod +x ~/.local/bin/uv
"""


def bash(
    script: str, *words: str, path: Path | None = None, tpu: Path = TPU
) -> subprocess.CompletedProcess[str]:
    """Runs a script of tpu/ with `path` in front of PATH."""
    found = os.environ["PATH"] if path is None else f"{path}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(tpu / script), *words],
        capture_output=True,
        text=True,
        env={**os.environ, **SECRETS, "PATH": found, "PYTHON": sys.executable},
        cwd=tpu.parent,
        timeout=100,
    )


def on_four(
    script: str, folder: Path, *words: str, tpu: Path = TPU
) -> subprocess.CompletedProcess[str]:
    """Runs a script of tpu/ for the four hosts of v5e:4x4."""
    if not (folder / "bin").exists():
        stub(folder, 4)
    slice_ = ["--name=vine", "--zone=z", "--topology=v5e:4x4", f"--logs={folder}/logs"]
    return bash(script, *slice_, *words, path=folder / "bin", tpu=tpu)


def checkout(folder: Path) -> Path:
    """tpu/ of a repository that has what the scripts need in a commit. Makes the stubs, too."""
    root = folder / "checkout"
    shutil.copytree(TPU, root / "tpu")
    modules = ["__init__.py", "version.py", "core/__init__.py", "core/errors.py"]
    modules += [f"runtime/{name}.py" for name in ("__init__", "topology")]
    for name in modules:
        (root / "vinejax" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "vinejax" / name, root / "vinejax" / name)
    for name in (".gitattributes", ".revision"):  # the commit, for an archive to name
        shutil.copy(ROOT / name, root)
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    git += ["-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    stub(folder, 4)
    (folder / "bin/python3").write_text(PYTHON3, encoding="utf-8")
    (folder / "bin/python3").chmod(0o755)
    set_versions(folder, ["python 3.12.1 jax 0.12.0"] * 4)
    return root / "tpu"


def set_versions(folder: Path, versions: list[str]) -> None:
    for host, version in enumerate(versions):
        path = folder / f"host/{host}/versions"
        path.write_text(f"#!/bin/sh\necho {version}\n", encoding="utf-8")
        path.chmod(0o755)
