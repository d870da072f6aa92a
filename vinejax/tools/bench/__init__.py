"""The credit bench: errors and costs of credit estimators, at a fixed policy.

The policy is not trained. `bench_mode.py` is `--mode=credit`; `estimators.py` names the estimators.
"""
