"""Step credit as five small rules, of which a method names one each; docs/credit.md explains them.

    positions   where the states of a solution are                      positions.py
    allocation  how many continuations are drawn at each, in waves      allocation.py, bisection.py
    value       which returns the value of a state is the mean of       samples.py, backup.py,
                                                                        estimate.py
    advantage   values and rewards to an advantage per token            the method's `credit`
    mask        which tokens are trained on                             mask.py

Each is a pure function of what has been sampled. `rules.py` finds them by name.
"""
