"""Tests the scripts of tpu/ on hosts that end, die, hang and disappear. See tpu_stub.py."""

import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from helpers.tpu_stub import SECRETS, checkout, on_four, set_versions, stub

pytestmark = pytest.mark.nightly

HOST = "host=${HOME##*/}"


def is_alive(pid: str) -> bool:
    stat = Path(f"/proc/{pid.strip()}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def launch(folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`program` is bash, in which $host is the number of the host."""
    command = ["bash", "-c", f"{HOST}; {program}"]
    return on_four("launch.sh", folder, "--poll=1", "--grace=4", *words, "--", *command)


def test_the_host_that_died_first_is_named(tmp_path: Path):
    """Host 1 aborts, as a peer does, before host 2 has written its own error."""
    done = launch(
        tmp_path,
        "case $host in 2) echo out of cheese; sleep 1; exit 7 ;; 1) kill -ABRT $$ ;;"
        " *) sleep 1.5; kill -ABRT $$ ;; esac",
    )
    assert done.returncode == 1, done.stderr
    assert "host 2 died first: exit code 7 at " in done.stderr
    assert "out of cheese" in done.stderr and done.stderr.count("died first") == 1
    states = (tmp_path / "logs/status.txt").read_text().splitlines()
    assert [line.split()[:3] for line in states] == [
        ["0", "exited", "134"],
        ["1", "exited", "134"],
        ["2", "exited", "7"],
        ["3", "exited", "134"],
    ]
    assert (tmp_path / "logs/log/2.log").read_text() == "out of cheese\n"


def test_the_newest_line_of_host_0_is_shown(tmp_path: Path):
    done = launch(tmp_path, "echo one; printf '10%%\\r20%% of %s' $host; sleep 1.5; exit 0")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("20% of 0") == 1 and not {"one", "10%", "20% of 1"} & set(lines)


def test_of_several_errors_the_earliest_is_named(tmp_path: Path):
    done = launch(tmp_path, "sleep 0.$((9 - 2 * host)); exit $((host + 3))")
    assert "host 3 died first: exit code 6 at " in done.stderr and done.returncode == 1


def test_hosts_that_hang_are_ended(tmp_path: Path):
    program = "[[ $host != 0 ]] || kill -KILL $$; sleep 600 & echo $! >~/child; wait"
    done = launch(tmp_path, program, "--grace=1")
    assert "host 0 died first: exit code 137 at " in done.stderr and done.returncode == 1
    assert "may have run out of memory" in done.stderr
    for host in (1, 2, 3):
        assert (tmp_path / f"host/{host}/vinejax-job/end").read_text().startswith("143 ")
        assert not is_alive((tmp_path / f"host/{host}/child").read_text())


def test_a_host_that_is_gone_is_named(tmp_path: Path):
    program = (
        "sleep 1; [[ $host != 1 ]] || { touch ~/unreachable; exit 0; }; sleep 1; kill -ABRT $$"
    )
    done = launch(tmp_path, program)
    assert "no word of the end from host 1 (silent): taken away, or restarted?" in done.stderr
    assert "the others ended by SIGABRT (134), as hosts do that lose another one" in done.stderr
    assert done.returncode == 1 and "died first" not in done.stderr


def test_a_slice_that_is_gone_is_told_from_an_error(tmp_path: Path):
    done = launch(tmp_path, "touch ~/unreachable; sleep 600", "--grace=1")
    assert "host 0 (silent) 1 (silent) 2 (silent) 3 (silent): taken away" in done.stderr
    assert done.returncode == 3
    for host in range(4):  # as no stop reaches them
        os.killpg(int((tmp_path / f"host/{host}/vinejax-job/pid").read_text()), signal.SIGKILL)


def test_words_and_variables_arrive_as_they_are(tmp_path: Path):
    words = ["two words", "it's", 'a "quote"', "$HOME `x` \\ ;", "line\nline", "", "*", "ü", "~/a"]
    script = tmp_path / "show"
    script.write_text('#!/bin/sh\nprintf "<%s>" "$@" "$HF_TOKEN" "$PWD"\n', encoding="utf-8")
    script.chmod(0o755)
    command = ["--poll=1", "--env=HF_TOKEN", "--", str(script), *words]
    done = on_four("launch.sh", tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert "# done on all 4 hosts" in done.stdout
    for host in range(4):
        home = f"{tmp_path}/host/{host}"
        expected = "".join(f"<{word}>" for word in [*words, SECRETS["HF_TOKEN"], f"{home}/vinejax"])
        assert (tmp_path / f"logs/log/{host}.log").read_text() == expected
        assert not list(tmp_path.glob("host/*/vinejax.env")) + list(tmp_path.glob("host/*/*/env"))
    assert "hf secret" not in (tmp_path / "calls").read_text() + done.stdout + done.stderr


def test_the_same_command_follows_and_another_is_refused(tmp_path: Path):
    """After Ctrl-C the earlier job runs on, and the script does not start it twice."""
    stub(tmp_path, 4)
    program = "echo once >>~/started; until [[ -e ~/go ]]; do sleep 0.1; done; exit 5"
    for host in range(4):
        home = tmp_path / f"host/{host}"
        words = ["bash", "vinejax/tpu/worker.sh", "start", "bash", "-c", f"{HOST}; {program}"]
        environment = {**os.environ, "HOME": str(home)}
        done = subprocess.run(words, env=environment, cwd=home, capture_output=True, text=True)
        assert done.stdout == "vinejax-worker started\n"

    other = launch(tmp_path, "echo other")
    assert other.returncode == 1 and "worker.sh stop" not in other.stdout
    assert other.stderr == "error: another command runs there; end it with tpu/launch.sh --stop\n"

    def go_on() -> None:
        while "worker.sh status" not in (tmp_path / "calls").read_text():
            time.sleep(0.1)
        for host in range(4):
            (tmp_path / f"host/{host}/go").touch()

    thread = threading.Thread(target=go_on)
    thread.start()
    followed = launch(tmp_path, program)
    thread.join()
    assert "# it runs there already; following it" in followed.stdout
    assert followed.returncode == 1 and "exit code 5" in followed.stderr
    assert [path.read_text() for path in tmp_path.glob("host/*/started")] == ["once\n"] * 4


def test_a_start_that_reaches_some_hosts_is_taken_back(tmp_path: Path):
    stub(tmp_path, 4)
    (tmp_path / "host/3/unreachable").touch()
    done = launch(tmp_path, "sleep 600")
    assert done.returncode == 1
    assert "not started on host 3 (no answer), so ended on the others" in done.stderr
    ends = [(tmp_path / f"host/{host}/vinejax-job/end").read_text() for host in range(3)]
    assert all(end.startswith("143 ") for end in ends)


def test_setup_installs_the_commit_everywhere(tmp_path: Path):
    tpu = checkout(tmp_path)
    (tpu / "not_committed").touch()
    (tmp_path / "my data").mkdir()
    (tmp_path / "my data/train.jsonl").write_text("{}\n")
    words = [f"--data={tmp_path}/my data", "--packages-until=2026-11-01"]
    done = on_four("setup.sh", tmp_path, *words, tpu=tpu)
    assert done.returncode == 0, done.stderr
    revision = subprocess.check_output(["git", "-C", str(tpu), "rev-parse", "HEAD"], text=True)
    assert f"# all 4 hosts: python 3.12.1 jax 0.12.0 revision {revision}" in done.stdout
    for host in range(4):
        home = tmp_path / f"host/{host}"
        assert (home / "vinejax/tpu/lib.sh").exists()
        assert not (home / "vinejax/tpu/not_committed").exists()
        assert (home / "data/my data/train.jsonl").read_text() == "{}\n"
        venv, install = (home / "uv.calls").read_text().splitlines()
        assert venv == "venv --quiet --python 3.12 .venv"
        assert install.endswith(" --exclude-newer 2026-11-01 -e .[tpu,gcs]")


def test_setup_wants_the_same_versions_everywhere(tmp_path: Path):
    tpu = checkout(tmp_path)
    set_versions(tmp_path, ["jax 0.12.0", "jax 0.12.0", "jax 0.12.1"])
    done = on_four("setup.sh", tmp_path, tpu=tpu)
    assert done.returncode == 1
    assert "error: host 2 has other packages. It: jax 0.12.1 revision" in done.stderr

    (tmp_path / "host/2/versions").write_text("#!/bin/sh\necho no disk left; exit 1\n")
    (tmp_path / "host/3/unreachable").touch()
    done = on_four("setup.sh", tmp_path, tpu=tpu)
    assert done.returncode == 1
    assert "error: not installed on host 2 3 of 4; the ends of its logs are above" in done.stderr


def test_watch_goes_on_after_the_slice_is_taken(tmp_path: Path):
    """The first slice goes away with host 1 in the middle of the run; the second one ends it."""
    tpu = checkout(tmp_path)
    program = (
        "echo run >>~/runs; sleep 0.5; if (($(wc -l <~/runs) == 1)); then"
        f" echo SUSPENDED >{tmp_path}/queued; [[ $host != 1 ]] || exit 9; kill -ABRT $$; fi"
    )
    words = ["--poll=0", "--spot", "--", "bash", "-c", f"{HOST}; {program}", "--workdir=gs://b/run"]
    done = on_four("watch.sh", tmp_path, *words, tpu=tpu)
    assert done.returncode == 0, done.stderr
    steps = r"queued-resources (create|delete)|worker.sh (install|start)"
    calls = [first or then for first, then in re.findall(steps, (tmp_path / "calls").read_text())]
    assert calls == ["create", "install", "start", "delete", "create", "install", "start"]
    assert [path.read_text() for path in tmp_path.glob("host/*/runs")] == ["run\nrun\n"] * 4
    assert "host 1 died first: exit code 9" in done.stderr


def test_watch_stops_when_slices_keep_going_away(tmp_path: Path):
    tpu = checkout(tmp_path)
    program = f"echo SUSPENDED >{tmp_path}/queued; exit 134"
    words = ["--poll=0", "--restarts=1", "--", "bash", "-c", program, "--workdir=gs://b/run"]
    done = on_four("watch.sh", tmp_path, *words, tpu=tpu)
    assert done.returncode == 1
    assert done.stderr.endswith("error: 1 slices were taken away; giving up\n")
    assert (tmp_path / "calls").read_text().count("queued-resources create") == 2


def test_watch_does_not_repeat_an_error_of_the_command(tmp_path: Path):
    tpu = checkout(tmp_path)
    watch = (tpu / "watch.sh").read_text()
    (tpu / "watch.sh").write_text(watch.replace("SETTLE=180", "SETTLE=1"))
    words = ["--poll=0", "--", "bash", "-c", "exit 3", "--workdir=gs://b/run"]
    done = on_four("watch.sh", tmp_path, *words, tpu=tpu)
    assert done.returncode == 1
    assert "the command failed on a slice that is still there, and costs" in done.stderr
    calls = (tmp_path / "calls").read_text()
    assert calls.count("worker.sh start") == 1 and "delete" not in calls


def test_watch_rents_nothing_for_a_command_that_is_wrong(tmp_path: Path):
    tpu = checkout(tmp_path)
    words = ["--revision=no-such", "--", "true", "--workdir=gs://b/run"]
    done = on_four("watch.sh", tmp_path, *words, tpu=tpu)
    assert done.returncode == 2 and not (tmp_path / "calls").exists()
    assert "error: --revision=no-such: this checkout has no such commit\n" == done.stderr


def test_watch_waits_while_google_cannot_be_asked(tmp_path: Path):
    """Without an answer nothing is deleted, and the script goes on when Google answers again."""
    tpu = checkout(tmp_path)
    (tmp_path / "queued").write_text("ACTIVE\n")
    (tmp_path / "node").write_text("REPAIRING\n")
    before = '"$fake/calls"\n'
    outage = f"""case $(wc -l <{tmp_path}/calls) in
  [5-8]) echo "ERROR: no route" >&2; exit 1 ;;
  9) echo READY >{tmp_path}/node ;;
esac
"""
    gcloud = (tmp_path / "bin/gcloud").read_text()
    assert before in gcloud
    (tmp_path / "bin/gcloud").write_text(gcloud.replace(before, before + outage))
    words = ["--poll=0", "--", "true", "--workdir=gs://b/run"]
    done = on_four("watch.sh", tmp_path, *words, tpu=tpu)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text()
    assert calls.count("queued-resources describe") >= 6 and "delete" not in calls
    said = [line[9:] for line in done.stderr.splitlines() if "Google" in line]
    assert said == ["Google cannot be asked: ERROR: no route", "Google can be asked again"]


def test_watch_needs_an_answer_to_its_first_look(tmp_path: Path):
    """Without a project, or without the right to it, the script would wait for ever."""
    tpu = checkout(tmp_path)
    denied = "echo WARNING: old >&2; echo 'ERROR: (gcloud) PERMISSION_DENIED: no' >&2; exit 1"
    (tmp_path / "bin/gcloud").write_text(f"#!/bin/sh\n{denied}\n")
    words = ["--poll=0", "--", "true", "--workdir=gs://b/run"]
    done = on_four("watch.sh", tmp_path, *words, tpu=tpu)
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.endswith(" Google cannot be asked: ERROR: (gcloud) PERMISSION_DENIED: no")
    assert second == "error: Google has to answer once before this goes on by itself"
