"""The credit bench: errors and costs of credit estimators, at a fixed policy.

Nothing is trained. `command.py` is `--mode=credit`; `estimators.py` names the estimators.
"""
