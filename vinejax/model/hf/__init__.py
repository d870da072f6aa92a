"""Hugging Face folders, read and written: config.json, safetensors files, tokenizer files.

In reading order:

    weights.py       `load_pretrained`, `save_pretrained`
    hub.py           from a folder, a gs:// path or a name on the hub to a folder
    families.py      config.json <-> `DecoderConfig`; one record per family
    fields.py        checked fields of a config.json; rope_fields.py: those of RoPE
    names.py         our parameters <-> a checkpoint's tensors
    tensors.py       safetensors files, read by range
    architecture.py  a config.json without weights, for `--mode=plan`

Ours and Hugging Face's names, in full in names.py:

    embed, norm, head              model.embed_tokens, model.norm, lm_head
    q, k, v, out                   self_attn.q_proj, .k_proj, .v_proj, .o_proj
    gate, up, down                 mlp.gate_proj, .up_proj, .down_proj
    attention_norm, mlp_norm       input_layernorm, post_attention_layernorm
"""
