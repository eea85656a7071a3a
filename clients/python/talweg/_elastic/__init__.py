# SPDX-License-Identifier: Apache-2.0
"""Jobs whose nodes come and go: docs/elastic.md.

Who is in the job
    membership      who is in the job, as a program sees it
    views           the members of one epoch, and the changes from one epoch to another
    agreement       the round in which all ranks name one view
    lanes           the numbers that ranks tell each other in such rounds
    outlive         attaches a rank again whose agent was lost
What a rank needs to go on in another's place
    state           talweg.State
    state_rounds    how a State travels while all ranks wait
    sampler         which samples each rank takes
    samples         those that nobody has taken yet
    shares          how many, in proportion to its speed
    own_time        how long a rank works in a step, without its waits
    generators      random generators among a State's values
How a joiner catches up beside the steps of the others
    catch_up        the states of a joiner and of a survivor
    giving          what a survivor does
    taking          what a joiner does
    catch_up_lines  what travels between the two
    pace            how much travels at once
    stripes         which survivor sends which part
    replay          what a State offers for catching up
    state_replay    the same for a talweg.State with an `apply` hook
"""
