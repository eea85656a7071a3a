# SPDX-License-Identifier: Apache-2.0
"""The states of a gradient exchange, and what leads from one to the other."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    """Where the current step is.

    In the last three the averages of the step before are still under way: the optimizer takes them
    one by one, and the next backward pass has overtaken it. The others' averages are not.
    """

    COLLECTING = "no pass runs, and no gradient of the step has left"
    PASS = "a backward pass runs, and no gradient of the step has left"
    PUSHING = "a backward pass runs, and gradients leave as they come"
    PARTLY_PUSHED = (
        "no pass runs; some gradients have left, and the rest has not: a pass has failed"
    )
    BEGUN = "all gradients have left, and their averages are under way"
    AVERAGED = "the averages are in the gradients' place"
    NEXT_PASS = "as PASS, over the averages of the step before"
    NEXT_PUSHING = "as PUSHING, over the averages of the step before"
    NEXT_PARTLY_PUSHED = "no pass runs; the rest waits for the averages of the step before"


class Event(Enum):
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
        Event.PUSHED: State.PARTLY_PUSHED,  # A step without a pass, or a rank without batches.
        Event.ALL_PUSHED: State.BEGUN,  # There is no parameter.
        Event.PUT_BACK: State.AVERAGED,
        Event.STEP: State.COLLECTING,
        Event.ZERO_GRAD: State.COLLECTING,
    },
    State.PASS: {
        Event.PUSHED: State.PUSHING,
        Event.PASS_OVER: State.COLLECTING,  # Others are to come.
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
        Event.PUSHED: State.PARTLY_PUSHED,  # Of a rank that leaves its loop.
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
