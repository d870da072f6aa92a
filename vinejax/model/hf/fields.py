"""Checks the fields of a config.json, and records which of them are read.

A field raises an error if it is set (not None, False or empty), was not read, and is not known to
be harmless. So no property of a checkpoint is ignored.
"""

import re
from collections.abc import Container
from typing import Any, Never

from vinejax.core.errors import ModelError
from vinejax.core.plugins import finite_number

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
    use_flash_attn use_flash_attention use_flash_attention_2 output_router_logits
    router_aux_loss_coef
    base_model_name_or_path model_name model_name_or_path
    library_name pipeline_tag license language languages tags
    """.split()
)


# The settings of generation and of training in transformers 4.57 and 5.24 that are not named above.
# Tools copy them into config.json, and no forward pass reads them. The list is fixed so that the
# accepted files do not depend on the installed version.
OF_TRANSFORMERS = frozenset(
    """
    accelerator_config adafactor adam_beta1 adam_beta2 adam_epsilon
    assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight
    assistant_lookbehind auto_find_batch_size average_tokens_across_devices batch_eval_metrics
    bf16 bf16_full_eval cache_config compile_config constraints continuous_batching_config
    data_seed dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context
    dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory
    dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb
    ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed disable_compile
    disable_tqdm do_eval do_predict do_train dola_layers enable_jit_checkpoint
    encoder_repetition_penalty epsilon_cutoff eta_cutoff eval_accumulation_steps eval_delay
    eval_do_concat_batches eval_on_start eval_steps eval_strategy eval_use_gather_object
    force_words_ids fp16 fp16_backend fp16_full_eval fp16_opt_level fsdp fsdp_config
    fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap full_determinism
    gradient_accumulation_steps greater_is_better group_by_length guidance_scale
    half_precision_backend hub_always_push hub_model_id hub_private_repo hub_revision
    hub_strategy hub_token ignore_data_skip include_for_metrics include_inputs_for_metrics
    include_num_input_tokens_seen include_tokens_per_second is_assistant jit_mode_eval
    label_names label_smoothing_factor learning_rate length_column_name liger_kernel_config
    load_best_model_at_end local_rank log_level log_level_replica log_on_each_node logging_dir
    logging_first_step logging_nan_inf_filter logging_steps logging_strategy low_memory
    lr_scheduler_kwargs lr_scheduler_type max_cache_len max_grad_norm max_matching_ngram_size
    max_steps max_time metric_for_best_model min_new_tokens min_p mp_parameters
    neftune_noise_alpha no_cuda num_assistant_tokens num_assistant_tokens_schedule
    num_train_epochs optim optim_args optim_target_modules output_dir output_logits
    overwrite_output_dir parallelism_config past_index penalty_alpha per_device_eval_batch_size
    per_device_train_batch_size per_gpu_eval_batch_size per_gpu_train_batch_size
    prediction_loss_only prefill_chunk_size project prompt_lookup_num_tokens push_to_hub
    push_to_hub_model_id push_to_hub_organization push_to_hub_token ray_scope
    remove_unused_columns renormalize_logits report_to restore_callback_states_from_checkpoint
    resume_from_checkpoint return_legacy_cache run_name save_on_each_node save_only_model
    save_safetensors save_steps save_strategy save_total_limit seed sequence_bias
    skip_memory_metrics speculation_type stop_strings target_lookbehind tf32 token_healing top_h
    torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps torchdynamo
    tpu_metrics_debug tpu_num_cores trackio_bucket_id trackio_space_id trackio_static_space_id
    train_sampling_strategy use_cpu use_legacy_prediction_loop use_liger_kernel use_mps_device
    use_mtp warmup_ratio warmup_steps watermarking_config weight_decay
    """.split()
)


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
        number = None if isinstance(value, bool) else finite_number(value)
        if number is None or number <= 0:
            self.fail(field, "must be a positive number, and finite")
        return number

    def numbers(self, field: str) -> tuple[float, ...]:
        values = self.get(field)
        if not isinstance(values, list) or any(type(x) not in (int, float) for x in values):
            self.fail(field, "must be a list of numbers")
        numbers = tuple(x for x in map(finite_number, values) if x is not None)
        if len(numbers) != len(values):
            self.fail(field, "must have finite numbers")
        return numbers

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
        `OF_TRANSFORMERS`.
        """
        for field in sorted(self.raw.keys() - self.seen):
            is_known = field in harmless or field in OF_TRANSFORMERS
            is_off = self.raw[field] in (None, False, "", [], {})
            if not (is_known or is_off or HARMLESS_NAMES.fullmatch(field)):
                self.fail(field, "is not supported, and must not be ignored: it may change results")
