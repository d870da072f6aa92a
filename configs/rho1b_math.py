"""VinePPO, RhoMath 1.1B on MATH, on one GPU, on four or eight TPU chips or on a pod.

    python -m vinejax.main --mode=plan --config=configs/rho1b_math.py --config.topology=v5e:2x2
    python -m vinejax.main --config=configs/rho1b_math.py --config.data.path=FOLDER

Hardware: any row below, named by its chips; tpu/README.md says how to rent them. None was run:
docs/plan.md lists the rows that were compiled; that the others fit is arithmetic alone.
Reproduces: 23.0% pass@1 on the test split, the paper's VinePPO row, with its hyperparameters.
Departs: as configs/paper.py, and in nothing else that changes results.
"""

from pathlib import Path

from vinejax.config import from_file


def get_config(run="math,vineppo"):
    task, _, method = run.partition(",")
    cfg = from_file(__file__, f"paper.py:rho,{task},{method or 'vineppo'}")
    cfg.model.architecture = str(Path(__file__).parent / "models" / "rho_1b.json")
    cfg.model.remat = "full"  # where a row below does not say 'dots'
    cfg.mesh.data = 1  # the rows below set it
    # The model has 4 KV heads, and 2048 / fsdp must not be less than the 128 lanes of a TPU.
    # Microbatches have as many rows as packed rows of a minibatch of 64 fill without many empty
    # ones, where there are not more shards.
    dots = dict(remat="dots")
    cfg.meshes["v5e:16x16"] = dict(data=4, fsdp=16, tensor=4, slots=8192, microbatch=64, **dots)
    cfg.meshes["v5p:4x4x4"] = dict(fsdp=16, tensor=4, slots=8192, microbatch=16, **dots)
    cfg.meshes["v6e:8x8"] = dict(fsdp=16, tensor=4, slots=8192, microbatch=16, **dots)
    cfg.meshes["v5e:4x4"] = dict(fsdp=8, tensor=2, slots=4096, microbatch=16, **dots)
    cfg.meshes["v5e:2x4"] = dict(fsdp=8, slots=2048, microbatch=16, **dots)
    cfg.meshes["v6e:2x4"] = dict(fsdp=8, slots=4096, microbatch=16, **dots)
    # The smallest that fit.
    cfg.meshes["v5e:2x2"] = dict(fsdp=4, slots=512, microbatch=8, **dots)
    cfg.meshes["v5p:2x2x1"] = dict(fsdp=4, slots=2048, microbatch=16, **dots)
    cfg.meshes["v4:2x2x1"] = dict(fsdp=4, slots=2048, microbatch=16, **dots)
    cfg.meshes["v6e:1x1"] = dict(slots=256, microbatch=2)
    cfg.meshes["h100:1"] = dict(slots=512, microbatch=8, **dots)
    cfg.meshes["h200:1"] = dict(slots=1024, microbatch=16, **dots)
    cfg.meshes["h100:8"] = dict(fsdp=8, slots=2048, microbatch=16, **dots)
    cfg.meshes["h200:8"] = dict(fsdp=8, slots=4096, microbatch=16, **dots)
    return cfg
