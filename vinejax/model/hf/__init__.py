"""Reads and writes Hugging Face folders: config.json, safetensors files, tokenizer files.

The modules, in the order in which to read them:

    weights.py       `load_pretrained`, `save_pretrained`
    hub.py           finds the folder of a path, a gs:// path or a name on the hub
    gguf.py          converts a GGUF file to a folder
    families.py      config.json <-> `DecoderConfig`, with one record per family
    fields.py        checks the fields of a config.json
    rope_fields.py   reads and writes the fields of RoPE
    names.py         our parameters <-> the tensors of a checkpoint
    tensors.py       reads safetensors files by range, and writes them
    architecture.py  a config.json without weights, for `--mode=plan`
    peft.py          folders of adapters in the format of PEFT
"""
