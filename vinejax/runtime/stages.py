"""The stages that a run records, and the numbering of their records.

'train' is an iteration of the method. 'sft' is supervised training, which has no iterations: its
records are numbered by optimizer step. 'eval' and 'test' are evaluations between iterations.
"""


def number_field(stage: str) -> str:
    """The field of a record that numbers the records of its stage."""
    return "step" if stage == "sft" else "iteration"


def is_training(stage: str) -> bool:
    """Whether the stage changes the policy, so that a resumed run records it again in order."""
    return stage in ("train", "sft")
