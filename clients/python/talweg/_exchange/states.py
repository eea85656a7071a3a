# SPDX-License-Identifier: Apache-2.0
"""The states of a gradient exchange, and the transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    """Where a step is.

    It goes COLLECTING, PASS, ..., COLLECTING, PASS, PUSHING, PARTLY_PUSHED, BEGUN, and on to
    AVERAGED where the program waits for all averages. An optimizer that takes them one by one leaves
    BEGUN for COLLECTING with the last one; where the next backward pass comes before that, the next
    step goes through the states whose names begin with NEXT.
    """

    COLLECTING = "no backward pass runs, and no gradient of the step has left"
    PASS = "a backward pass runs, and no gradient of the step has left"
    PUSHING = "a backward pass runs, and some gradients of the step have left"
    # Only for a moment, unless a pass or a push has failed: then until begin() is called again.
    PARTLY_PUSHED = "no backward pass runs, and some gradients have left, but not all"
    BEGUN = "every gradient of the step has left, or leaves with the marks; averages are under way"
    AVERAGED = "the averages are in the gradients' place"
    NEXT_PASS = "PASS, while averages of the step before are under way"
    NEXT_PUSHING = "PUSHING, while averages of the step before are under way"
    # Until the last of those is taken: a parameter has one round at a time.
    NEXT_PARTLY_PUSHED = "PARTLY_PUSHED, while averages of the step before are under way"


class Event(Enum):
    """What happens to it."""

    GRADIENT = "a pass has its first gradient"
    PUSHED = "the step's first gradient has left"
    PASS_OVER = "the pass has ended, or has failed"
    ALL_PUSHED = "every gradient has left"
    ALL_TAKEN = "the last average that was under way has been taken"
    PUT_BACK = "all averages have been put in the gradients' place"
    STEP = "the optimizer has used the gradients up"
    ZERO_GRAD = "the gradients are gone"


# An event that a state does not list cannot happen in it.
TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.COLLECTING: {
        Event.GRADIENT: State.PASS,
        Event.PUSHED: State.PARTLY_PUSHED,  # A step without a pass, or a rank that is out of batches.
        Event.ALL_PUSHED: State.BEGUN,  # All gradients are held until the marks tell their forms.
        Event.PUT_BACK: State.AVERAGED,
        Event.STEP: State.COLLECTING,
        Event.ZERO_GRAD: State.COLLECTING,
    },
    State.PASS: {
        Event.PUSHED: State.PUSHING,
        Event.PASS_OVER: State.COLLECTING,  # The step has further ones.
    },
    State.PUSHING: {
        Event.PASS_OVER: State.PARTLY_PUSHED,
    },
    State.PARTLY_PUSHED: {
        Event.GRADIENT: State.PUSHING,
        Event.ALL_PUSHED: State.BEGUN,
        Event.STEP: State.PARTLY_PUSHED,
        Event.ZERO_GRAD: State.PARTLY_PUSHED,  # What has left is averaged all the same.
    },
    State.BEGUN: {
        Event.GRADIENT: State.NEXT_PASS,
        Event.ALL_TAKEN: State.COLLECTING,
        Event.STEP: State.BEGUN,
        Event.ZERO_GRAD: State.BEGUN,
    },
    State.AVERAGED: {
        Event.GRADIENT: State.PASS,
        Event.PUSHED: State.PARTLY_PUSHED,  # The rank is out of batches.
        Event.ALL_PUSHED: State.BEGUN,
        Event.STEP: State.COLLECTING,
        Event.ZERO_GRAD: State.COLLECTING,
    },
    State.NEXT_PASS: {
        Event.PUSHED: State.NEXT_PUSHING,
        Event.PASS_OVER: State.BEGUN,
        Event.ALL_TAKEN: State.PASS,
    },
    State.NEXT_PUSHING: {
        Event.PASS_OVER: State.NEXT_PARTLY_PUSHED,
        Event.ALL_TAKEN: State.PUSHING,
    },
    State.NEXT_PARTLY_PUSHED: {
        Event.GRADIENT: State.NEXT_PUSHING,
        Event.ALL_TAKEN: State.PARTLY_PUSHED,
        Event.STEP: State.NEXT_PARTLY_PUSHED,
        Event.ZERO_GRAD: State.NEXT_PARTLY_PUSHED,
    },
}

# A backward pass runs.
IN_PASS = (State.PASS, State.PUSHING, State.NEXT_PASS, State.NEXT_PUSHING)
# No pass runs, and rounds are open that begin() has not completed.
LEFT_OPEN = (State.PARTLY_PUSHED, State.NEXT_PARTLY_PUSHED)
# Some gradients of a step have left, but not all.
PARTLY_LEFT = (State.PUSHING, State.NEXT_PUSHING, *LEFT_OPEN)
