# SPDX-License-Identifier: Apache-2.0
"""Calls in which ranks exchange tensors, for every framework: docs/collectives.md.

What a framework's module offers
    calls            all_gather and its like
    reduction_calls  reduce_scatter and reduce
    numpy_calls      both, of NumPy arrays
    family           what these are made of
    process_sets     groups of ranks, and which of them a call is of
    objects          bytes and Python objects of any size
What a call does
    rounds           push_pull and broadcast: which tensor each call of a name goes through
    compared         calls that the ranks compare before they make them
    collectives      all others: how they start, and their handles
    one_call         one of these calls: a control round, then the data
    call_data        the rounds that carry the data
    callers          what each rank has called, and where
    joined           what a rank does in others' calls that has joined
    channels         calls that run one after another, and who carries them on
    call_channel     a channel of collectives: its tensors, and what ranks say to each other
    one_round        calls that take one round
Words
    kinds            what collectives there are, and what a rank brings to one
    words            what ranks say in a control round, and whether it fits together
    scaling          factors before and after a reduction
"""
