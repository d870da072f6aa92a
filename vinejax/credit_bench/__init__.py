"""The credit bench: what the credit of each estimator is worth, at a fixed policy.

Nothing is trained. `command.py` is `--mode=credit`; `estimators.py` names what is compared.
"""
