"""Coverage-guided search for texts that grading or splitting cannot cope with.

    pip install atheris
    python fuzz/atheris_grading.py -max_total_time=600 -len_control=0 -max_len=600 [CORPUS]

Runs until something raises or takes longer than a second, and prints the texts; options are those
of libFuzzer. Bytes choose the pieces and forms of tests/helpers/grading_grammar.py, or are text
themselves. atheris needs Linux; it is no dependency of the project, and no test runs this.
"""

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
with atheris.instrument_imports(include=["vinejax.grading", "vinejax.tasks"]):
    from helpers.grading_grammar import FORMS, PIECES, check_reference, check_strict, check_text

DEPTH = 4


def part(data: atheris.FuzzedDataProvider, depth: int) -> str:
    """A piece, some bytes as text, or a form with parts in place of each "@"."""
    kind = data.ConsumeIntInRange(0, 7)
    if kind == 0:
        return data.ConsumeUnicode(8)
    if kind < 4 or depth == 0:
        return PIECES[data.ConsumeIntInRange(0, len(PIECES) - 1)]
    first, *rest = FORMS[data.ConsumeIntInRange(0, len(FORMS) - 1)].split("@")
    return first + "".join(part(data, depth - 1) + hole for hole in rest)


def text(data: atheris.FuzzedDataProvider) -> str:
    return "".join(part(data, DEPTH) for _ in range(data.ConsumeIntInRange(1, 4)))


def one(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    a, b = text(provider), text(provider)
    try:
        check_text(a)
        check_strict(a, b)
        check_reference(a, b)
    except BaseException:
        print(f"found with {a!r} and {b!r}")
        raise


def main() -> None:
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
