"""VinePPO, DeepSeekMath 7B on MATH, on a TPU slice or eight GPUs.

    python -m vinejax.main --mode=plan --config=configs/math7b.py --config.topology=v5e:16x16
    python -m vinejax.main --config=configs/math7b.py --config.data.path=FOLDER

The first command says what a slice would hold and how fast it could be, without the slice. The
second is the same on every host of the slice; it takes the row of `meshes` that fits the devices.

Hardware: any row below, named by its chips; tpu/README.md says how to rent them. None was run:
docs/plan.md lists the rows that were compiled; that the others fit is arithmetic alone.
Reproduces: 46.0% pass@1 on the test split, the paper's VinePPO row, with its hyperparameters.
Departs: as configs/paper.py, and in nothing else that changes results: slots, microbatches,
rematerialisation and the place of the reference model only decide what fits.
"""

from pathlib import Path

from vinejax.config import from_file


def get_config(run="math,vineppo"):
    task, _, method = run.partition(",")
    cfg = from_file(__file__, f"paper.py:deepseek,{task},{method or 'vineppo'}")
    cfg.model.architecture = str(Path(__file__).parent / "models" / "deepseek_math_7b.json")
    cfg.model.remat = "full"  # where a row below does not say 'dots'
    cfg.mesh.fsdp = 1  # the rows below set it
    # Eight ways over `tensor` rather than four: a decode step then reads half as many bytes of
    # weights per chip, and decoding takes most of an iteration.
    # Packed rows of a minibatch of 64 fill fewer than 16, so a microbatch has one row per shard.
    dots = dict(remat="dots")
    cfg.meshes["v5e:16x16"] = dict(fsdp=32, tensor=8, slots=6144, microbatch=32, **dots)
    cfg.meshes["v5p:4x4x4"] = dict(fsdp=16, tensor=4, slots=6144, microbatch=16, **dots)
    cfg.meshes["v6e:8x8"] = dict(fsdp=16, tensor=4, slots=3072, microbatch=16, **dots)
    # The smallest that fit.
    cfg.meshes["v5e:4x4"] = dict(fsdp=2, tensor=8, slots=96, microbatch=4)
    cfg.meshes["v5p:2x2x1"] = dict(fsdp=1, tensor=4, slots=128, microbatch=4)
    cfg.meshes["v6e:2x4"] = dict(fsdp=2, tensor=4, slots=64, microbatch=2)
    cfg.meshes["h100:8"] = dict(fsdp=4, tensor=2, slots=256, microbatch=8, **dots)
    cfg.meshes["h200:8"] = dict(fsdp=4, tensor=2, slots=512, microbatch=8, **dots)
    return cfg
