"""Hugging Face folders, read and written: config.json, safetensors files, tokenizer files.

In reading order:

    weights.py       `load_pretrained`, `save_pretrained`
    hub.py           from a folder, a gs:// path or a name on the hub to a folder
    families.py      config.json <-> `DecoderConfig`; one record per family
    fields.py        checked fields of a config.json; rope_fields.py: RoPE's
    names.py         our parameters <-> a checkpoint's tensors
    tensors.py       safetensors files, read by range
    architecture.py  a config.json without weights, for `--mode=plan`
"""
