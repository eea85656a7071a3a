# SPDX-License-Identifier: Apache-2.0
"""Jobs whose nodes come and go: docs/elastic.md.

Who is there
    membership      who is in the job, as a program sees it
    views           the members of one epoch, and what changes from one to another
    agreement       the round in which all ranks name one view
    lanes           the numbers that ranks tell each other in such rounds
    outlive         a rank whose agent was lost is attached again
What a rank needs to go on where another one is
    state           talweg.State
    state_rounds    how it travels while all ranks wait
    sampler         which samples each rank takes
    generators      random generators among a State's values
How a joiner catches up beside the steps of the others
    catch_up        its states, and a survivor's
    giving          what a survivor does
    taking          what a joiner does
    catch_up_lines  what travels between the two
    pace            how much of it at once
    stripes         which survivor sends what
    replay          what a State offers for that
    state_replay    the same of a talweg.State with an `apply` hook
"""
