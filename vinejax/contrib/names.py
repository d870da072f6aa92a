"""The modules of contributed methods, tasks, groups of settings and options, by name.

`vinejax/core/accessories.py` reads these tables. A module is imported only when it is needed.
"""

METHODS = {
    "poad": "vinejax.contrib.methods.poad",
    "direct": "vinejax.contrib.methods.direct",
    "spo_tree": "vinejax.contrib.methods.spo_tree",
    "treepo": "vinejax.contrib.methods.treepo",
    "treerl": "vinejax.contrib.methods.treerl",
    "tree_grpo": "vinejax.contrib.methods.tree_grpo",
    "tempo": "vinejax.contrib.methods.tempo",
    "gigpo": "vinejax.contrib.methods.gigpo",
    "turn_credit": "vinejax.contrib.methods.turn_credit",
    "srgpo": "vinejax.contrib.methods.srgpo",
    "arpo": "vinejax.contrib.methods.arpo",
    "aepo": "vinejax.contrib.methods.aepo",
    "scaf_grpo": "vinejax.contrib.methods.scaf_grpo",
    "gdpo": "vinejax.contrib.methods.gdpo",
    "unlikely": "vinejax.contrib.methods.unlikely",
    "drpo": "vinejax.contrib.methods.drpo",
    "hapo": "vinejax.contrib.methods.hapo",
    "opmd": "vinejax.contrib.methods.opmd",
    "asymre": "vinejax.contrib.methods.asymre",
    "mdpo": "vinejax.contrib.methods.mdpo",
    "popri": "vinejax.contrib.methods.popri",
    "single_stream": "vinejax.contrib.methods.single_stream",
    "opd": "vinejax.contrib.methods.opd",
    "sdpo": "vinejax.contrib.methods.sdpo",
}
# Paths under `vinejax.tasks`, as `data.task` names them, and the modules that they stand for.
TASKS = {
    "vinejax.tasks.code": "vinejax.contrib.code.task",
    "vinejax.tasks.programs": "vinejax.contrib.code.programs",
    "vinejax.tasks.python_tool": "vinejax.contrib.code.python_tool",
    "vinejax.tasks.python_call": "vinejax.contrib.code.python_call",
    "vinejax.tasks.gem": "vinejax.contrib.environments.gem",
    "vinejax.tasks.gymnasium": "vinejax.contrib.environments.gymnasium",
    "vinejax.tasks.openenv": "vinejax.contrib.environments.openenv",
    "vinejax.tasks.textarena": "vinejax.contrib.environments.textarena",
    "vinejax.tasks.verifiers": "vinejax.contrib.environments.verifiers",
}
SECTIONS = {
    "direct": "vinejax.contrib.methods.settings.DirectConfig",
    "spo_tree": "vinejax.contrib.methods.settings.SPOTreeConfig",
    "treepo": "vinejax.contrib.methods.settings.TreePOConfig",
    "treerl": "vinejax.contrib.methods.settings.TreeRLConfig",
    "tree_grpo": "vinejax.contrib.methods.settings.TreeGRPOConfig",
    "gigpo": "vinejax.contrib.methods.settings.GiGPOConfig",
    "turn_credit": "vinejax.contrib.methods.settings.TurnCreditConfig",
    "srgpo": "vinejax.contrib.methods.settings.SRGPOConfig",
    "arpo": "vinejax.contrib.methods.settings.ARPOConfig",
    "aepo": "vinejax.contrib.methods.settings.AEPOConfig",
    "scaf": "vinejax.contrib.methods.settings.ScafConfig",
    "unlikely": "vinejax.contrib.methods.settings.UnlikelyConfig",
    "drpo": "vinejax.contrib.methods.settings.DRPOConfig",
    "hapo": "vinejax.contrib.methods.settings.HAPOConfig",
    "opmd": "vinejax.contrib.methods.settings.OPMDConfig",
    "asymre": "vinejax.contrib.methods.settings.AsymREConfig",
    "mdpo": "vinejax.contrib.methods.settings.MDPOConfig",
    "popri": "vinejax.contrib.methods.settings.POPriConfig",
    "single_stream": "vinejax.contrib.methods.settings.SingleStreamConfig",
    "opd": "vinejax.contrib.methods.settings.OPDConfig",
    "sdpo": "vinejax.contrib.methods.settings.SDPOConfig",
    "code": "vinejax.contrib.code.settings.CodeConfig",
    "reset": "vinejax.contrib.resets.settings.ResetConfig",
    "prior_function": "vinejax.contrib.priors.settings.PriorFunctionConfig",
}
# Groups of fields that change the stages of an iteration; the module has a function `composed`.
OPTIONS = {
    "reset": "vinejax.contrib.resets.reset_option",
    "prior_function": "vinejax.contrib.priors.prior_option",
}
