"""`fagen tune`: the planner's candidates compiled, checked, measured against each other, and the fastest written down.

sweep.py     a spec -> a folder of modules of candidates, and sweep.json, which says what they are
measure.py   that folder, on the machine that has the card -> results.jsonl; needs torch alone
winners.py   results.jsonl -> the tuning file that the planner reads
"""
