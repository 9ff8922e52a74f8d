"""Is a kernel right? Runs a variant on cases made for it and holds every number to a rule, against float64.

cases, inputs, params, memory    what is computed: shapes from the tiles, values, where tensors lie
compare, magnitude, rule         what should come out, and how far from it a kernel may be
mutants                          whether the cases can tell the variant's expressions from wrong ones
visits                           whether the tiles that are skipped may be
run                              a verdict on one variant; report: its record; drive, worker: in processes
"""
