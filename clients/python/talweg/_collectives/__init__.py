# SPDX-License-Identifier: Apache-2.0
"""Calls in which ranks exchange tensors, for every framework: docs/collectives.md.

What a framework's module offers
    calls            all_gather and its like
    reduction_calls  reduce_scatter and reduce
    pair_calls       send and recv
    grouped_calls    calls of many tensors, and all of these in one class
    numpy_calls      that class, for NumPy arrays
    numpy_rounds     push_pull and broadcast of NumPy arrays
    numpy_sparse     push_pull_sparse of NumPy arrays
    many_rounds      push_pull and broadcast of many tensors of a framework
    family           what these modules share
    process_sets     groups of ranks, and the group of a call
    objects          bytes and Python objects of any size
How a call works
    rounds           push_pull and broadcast: which tensor each call of a name goes through
    queued           calls of push_pull and broadcast that wait for the open round of their name
    compared         calls that are made later: the ranks compare them before
    nameless_groups  calls of push_pull and broadcast that have one handle and no name
    adasum           Horovod's Adasum, a job of three calls
    sparse_sums      sums of tensors of which each rank gives some rows
    sparse_rows      how such rows travel and add up
    survivors_gather all_gather_survivors(), which goes on without lost ranks
    lost_ranks       errors of calls that a lost rank has ended
    collectives      all others: how they start, and their handles
    one_call         one of these calls: a control round, then the data
    call_data        the rounds that carry the data
    callers          what each rank has called, and where
    joined           the part of a joined rank in the others' calls
    channels         calls that run one after another, and who carries them on
    call_channel     a channel of collectives: its tensors, and what ranks say to each other
    one_round        calls that take one round
Words
    kinds            the collectives, and what a rank brings to a call
    words            what ranks say in a control round, and whether it fits together
    scaling          factors before and after a reduction
"""
