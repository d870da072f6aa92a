"""Checks the fields of a config.json, and records which of them are read.

A field raises an error if it is set (not None, False or empty), was not read, and is not known to
be harmless. So no property of a checkpoint is ignored.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Container
from typing import Any, Never

from vinejax.core.errors import ModelError

# Names of fields that cannot change the forward pass with any value.
HARMLESS_NAMES = re.compile(
    r"""
    _.*                                        # private to the class that wrote the file
    | \w*\W.*                                  # no attribute in Python: "transformers.js_config"
    | is_\w+_config | unsloth_\w+              # by nanotron, the class that wrote it; by unsloth
    | \w*(dropout|pdrop|checkpointing)\w* | initializer\w*  # training alone
    | \w*attn_implementation\w*                # how attention is computed
    | \w+_token_id | tokenizer_\w+             # text outside the model
    """,
    re.VERBOSE,
)
# Other harmless fields: bookkeeping, and the settings of generation that old configs contain.
HARMLESS = frozenset(
    """
    architectures model_type dtype torch_dtype transformers_version name_or_path auto_map use_cache
    cache_implementation pretraining_tp return_dict output_attentions output_hidden_states
    output_scores return_dict_in_generate torchscript use_bfloat16 chunk_size_feed_forward
    finetuning_task problem_type id2label label2id prefix task_specific_params tf_legacy_loss
    keys_to_ignore_at_inference max_length max_new_tokens min_length do_sample
    early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p
    repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size
    bad_words_ids num_return_sequences remove_invalid_values exponential_decay_length_penalty
    suppress_tokens begin_suppress_tokens sliding_window_size max_sequence_length
    max_seq_length max_seq_len seq_length model_max_length padding_side truncation_side
    bos_token eos_token pad_token unk_token additional_special_tokens chat_template
    is_decoder add_cross_attention tie_encoder_decoder loss_type num_logits_to_keep logits_to_keep
    use_flash_attn use_flash_attention use_flash_attention_2 adapters
    base_model_name_or_path model_name model_name_or_path
    library_name pipeline_tag license language languages tags
    """.split()
)


@functools.cache
def names_in_transformers() -> frozenset[str]:
    """The names of transformers' settings of generation and of training.

    Tools copy them into config.json, and no forward pass reads them.
    """
    # Without this, the import prints that torch is missing, although it is not needed.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import GenerationConfig, TrainingArguments  # takes seconds to import

    training = {field.name for field in dataclasses.fields(TrainingArguments)}
    return frozenset(training | GenerationConfig().to_dict().keys())


class FieldReader:
    """The fields of one config.json. Methods that return a field record that it was read."""

    def __init__(self, file: str, raw: dict[str, Any]):
        self.file, self.raw = file, raw
        self.seen: set[str] = set()

    def fail(self, field: str, message: str) -> Never:
        """Raise ModelError with the file, the field, its value and the message."""
        raise ModelError(f"{self.file}: {field} = {self.raw.get(field)!r} {message}")

    def get(self, field: str, otherwise: Any = None) -> Any:
        """The value of a field, or `otherwise` if it is absent or null."""
        self.seen.add(field)
        value = self.raw.get(field)
        return otherwise if value is None else value

    def size(self, field: str, otherwise: Any = None, minimum: int = 1) -> int:
        value = self.get(field, otherwise)
        if type(value) is not int or value < minimum:
            self.fail(field, "must be a positive integer" if minimum else "must be an integer")
        return value

    def number(self, field: str, otherwise: float | None = None) -> float:
        value = self.get(field, otherwise)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
            self.fail(field, "must be a positive number")
        return float(value)

    def numbers(self, field: str) -> tuple[float, ...]:
        values = self.get(field)
        if not isinstance(values, list) or any(type(x) not in (int, float) for x in values):
            self.fail(field, "must be a list of numbers")
        return tuple(float(x) for x in values)

    def flag(self, field: str, otherwise: bool = False) -> bool:
        value = self.get(field, otherwise)
        if type(value) is not bool:
            self.fail(field, "must be true or false")
        return value

    def token(self, field: str) -> int | None:
        value = self.get(field)
        if value is not None and type(value) is not int:
            self.fail(field, "must be a token id")
        return value

    def refuse_the_rest(self, harmless: Container[str]) -> None:
        """Raise ModelError for the first field that is set, was not read and is not harmless.

        A field is harmless if it is in `harmless`, matches `HARMLESS_NAMES`, or is one of
        `names_in_transformers`.
        """
        for field in sorted(self.raw.keys() - self.seen):
            is_harmless = field in harmless or HARMLESS_NAMES.fullmatch(field)
            if is_harmless or self.raw[field] in (None, False, "", [], {}):
                continue
            if field not in names_in_transformers():
                self.fail(field, "is not supported, and must not be ignored: it may change results")
