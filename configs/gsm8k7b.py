"""VinePPO, DeepSeekMath 7B on GSM8K, on a TPU slice or eight GPUs.

    python -m vinejax.main --mode=plan --config=configs/gsm8k7b.py --config.topology=v5e:16x16
    python -m vinejax.main --config=configs/gsm8k7b.py --config.data.path=FOLDER

Hardware: the rows of configs/math7b.py, by the same plan: model, batches and lengths are the same.
Reproduces: 80.1% pass@1 on the test split, the paper's VinePPO row, with its hyperparameters.
Departs: as configs/paper/deepseek_gsm8k_vineppo.py.
"""

from vinejax.config import from_file


def get_config():
    cfg = from_file(__file__, "paper/deepseek_gsm8k_vineppo.py")
    pod = from_file(__file__, "math7b.py")
    cfg.model.architecture = pod.model.architecture
    cfg.model.remat = pod.model.remat
    cfg.compile_cache = pod.compile_cache
    cfg.mesh, cfg.meshes = pod.mesh, pod.meshes
    return cfg
