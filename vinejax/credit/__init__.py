"""Step credit as five kinds of small rules, which docs/credit.md explains.

A method names one rule of each kind:

    positions   where the states of a solution are                      positions.py
    allocation  how many continuations each state gets, in waves        allocation.py, bisection.py
    value       which returns are averaged to the value of a state      samples.py, backup.py,
                                                                        estimate.py
    advantage   how values and rewards become an advantage per token    the method's `credit`
    mask        which tokens are trained on                             mask.py

Each rule is a pure function of the samples. `rules.py` finds rules by name.
"""
