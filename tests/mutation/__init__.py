"""Mistakes made in kernels by a program, each of which the automatic check must find.

    PYTHONPATH=.:tests python -m mutation.cpu
    PYTHONPATH=.:tests python -m mutation.cuda

mutate.py makes them, program.py has them tried in the processes of workers.py, and listed.py knows those that compute
the same. cpu/ and cuda/ have the kernels (subjects.py), what is changed in them (mutants.py), how a changed one is
tried (trial.py), and their lists.
"""
