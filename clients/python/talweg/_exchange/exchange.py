# SPDX-License-Identifier: Apache-2.0
"""The exchange of one optimizer's gradients: when each leaves, and whose averages count.

The exchange knows steps, passes, priorities, parameters that nobody used, and ranks that have left
their loop; it knows no framework. A framework's module tells it what happens (on_...), asks it for
averages, and lends it an Adapter.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, NoReturn

from talweg import _interrupts
from talweg._exchange.adapter import Adapter, Parameter, Refusal, Tensor
from talweg._exchange.names import DIGEST_BYTES, Names, digest_of
from talweg._exchange.states import IN_PASS, LEFT_OPEN, TRANSITIONS, Event, State
from talweg._exchange.thaws import Thaws
from talweg.errors import InternalError, InvalidArgument

# The marks, which say which gradients count, are few bytes, and updates wait for them.
_MARKS_PRIORITY = 2**30
# The last mark, which is the rank's: whether it has a batch, and whether a round of the loss follows.
_NO_BATCH, _BATCH, _BATCH_AND_LOSS = range(3)


class _Rounds:
    """One step's open averages: every parameter's round, and the round of the marks."""

    def __init__(
        self, touched: set[int], open_: dict[int, Any], marks: bytearray, marks_ticket: Any
    ) -> None:
        self.touched = touched  # The parameters that have a gradient here.
        self.open = open_  # Tickets, in the order in which the rounds were started.
        self.taken: set[int] = set()
        self.marks = marks  # They end with the digest of the parameters' names and shapes.
        self.marks_ticket = marks_ticket
        self.marks_are_there = False


class GradientExchange:
    """Pushes each gradient when it is ready, and returns the averages.

    The last backward pass of a step pushes a parameter's gradient at the moment it is accumulated.
    When that pass ends, parameters without a gradient push zeros, because every rank pushes every
    tensor in every round. The marks, one byte for each parameter, travel beside the gradients. They
    say for which parameters any rank had a gradient. A parameter that nobody used keeps the
    gradient (or the lack of one) that it had.

    With `leaves_out` a round may go on without late ranks. The marks would wait for them. So marks
    are exchanged until the parameters are known to be alike, and after that every active parameter
    counts. A joiner comes when the others exchange none any more. Thaws (thaws.py) says when ranks
    have to compare again.

    A gradient that was assigned also counts: any gradient that has changed since the last step.

    A parameter is active when it takes part: from the first time that it is trainable.

    TRANSITIONS (states.py) says what may follow what. One thread at a time.
    """

    def __init__(
        self, adapter: Adapter, name: str, passes: int = 1, leaves_out: bool = False
    ) -> None:
        self.name = name
        self.steps = 0  # The steps that the optimizer has taken.
        # Whether the optimizer evaluates a closure now, whose loss the ranks average. And whether this
        # rank has said so in the last exchange: a rank in join() then takes part in that average.
        self.evaluates = self.has_said_loss = False
        self._adapter = adapter
        self._leaves_out = leaves_out
        self._thaws = Thaws(adapter, name)
        self._state = State.COLLECTING
        self.set_passes(passes)
        self._passes_ended = 0  # The passes that have ended in this step.
        self._parameters: list[Parameter] = []
        self._additions = -1  # After the first ones.
        self._suffix = ""  # What names of rounds of these parameters end with.
        self._frozen: list[int] = []
        self._active: dict[int, None] = {}  # In the order in which they became active.
        self._tensors: dict[int, Tensor] = {}
        self._touched: set[int] = set()  # The parameters that have a gradient in this step.
        self._pushed: dict[int, Any] = {}  # Tickets of this step, until all have left.
        self._rounds: _Rounds | None = None
        self._unused: list[int] = []  # No rank had a gradient of these in the last exchange.
        self._names = Names(adapter, name)
        self._digest: bytes | None = None  # What ranks compare, once it is made.

    @property
    def state(self) -> State:
        return self._state

    @property
    def averaged(self) -> bool:
        """Whether the averages stand in the gradients' place since the last backward pass."""
        return self._state is State.AVERAGED

    @property
    def has_left_open(self) -> bool:
        """Whether no pass runs, and begin() has still to complete the open rounds."""
        return self._state in LEFT_OPEN

    @property
    def tensors(self) -> Collection[Tensor]:
        """The tensors whose rounds average the parameters' gradients, once they are declared."""
        return self._tensors.values()

    @property
    def active(self) -> Collection[int]:
        """The parameters that take part."""
        return self._active.keys()

    def name_of(self, index: int) -> str:
        return self._parameters[index].name

    def _move(self, event: Event) -> None:
        following = TRANSITIONS[self._state].get(event)
        if following is None:
            raise InternalError(
                f"the gradient exchange '{self.name}' is {self._state.name}, where "
                f"{event.name} cannot happen: please report this"
            )
        self._state = following

    def _refuse(self, refusal: Refusal, index: int) -> NoReturn:
        text = self._adapter.text_of(refusal)
        raise InvalidArgument(text.format(name=self._parameters[index].name))

    # Parameters.

    @property
    def passes(self) -> int:
        """The number of backward passes that accumulate before the gradients are averaged."""
        return self._passes

    def set_passes(self, passes: int) -> None:
        if passes < 1:
            raise InvalidArgument(f"backward_passes_per_step is {passes}; it must be at least 1")
        self._passes = passes

    def add(self, parameters: Iterable[Parameter]) -> list[int | None]:
        """Adds parameters, between two steps and at every rank alike. activate() makes them take
        part.

        Returns the index of each parameter, or None for one without elements, which is left out.
        """
        self._additions += 1
        self._suffix = f".{self._additions}" if self._additions else ""
        indices: list[int | None] = []
        for parameter in parameters:
            indices.append(len(self._parameters) if parameter.nbytes > 0 else None)
            if parameter.nbytes > 0:
                self._frozen.append(len(self._parameters))
                self._parameters.append(parameter)
        self._names.are_alike, self._digest = False, None
        return indices

    def activate(self) -> None:
        """Makes parameters that are trainable now active."""
        thawed = [index for index in self._frozen if self._adapter.is_trainable(index)]
        if not thawed:
            return
        self._frozen = [index for index in self._frozen if index not in set(thawed)]
        self._thaws.on_thawed(thawed)
        self._digest = None
        for index in thawed:
            self._active[index] = None
            self._adapter.watch(index)

    def _tensor_of(self, index: int, dtype: Hashable) -> Tensor:
        parameter = self._parameters[index]
        name = f"{self.name}.gradient.{parameter.name}"
        # The dtype of a tensor's name never changes, but a model's dtype may.
        if dtype != parameter.dtype:
            name = f"{name}.{dtype}"
        return Tensor(index, name, dtype, self._adapter.priority_of(index))

    # What happens.

    def on_gradient(self, index: int) -> None:
        """Notes that a pass has accumulated a gradient. The first one begins the pass."""
        if self._state not in IN_PASS:
            self._adapter.watch_pass()
            self._move(Event.GRADIENT)
        self._touched.add(index)
        if self._passes_ended + 1 >= self._passes:
            self._push(index)

    def on_pass_end(self) -> bool:
        """Notes the end of a pass. Returns whether it was the step's last, so that averages are
        open.
        """
        self._end_pass()
        self._passes_ended += 1
        if self._passes_ended < self._passes:
            return False
        self.begin()
        return True

    def on_step(self) -> None:
        """Notes that the optimizer has taken a step, which uses up the averages."""
        self.steps += 1
        self.on_evaluation()

    def on_evaluation(self) -> None:
        """Notes that the averages are used up: a step may compute gradients several times."""
        self._lose_pass()
        self._move(Event.STEP)
        self._adapter.note_gradients()

    def on_zero_grad(self) -> None:
        """Notes that the accumulated gradients and the averages are gone."""
        self._lose_pass()
        self._move(Event.ZERO_GRAD)
        self._adapter.note_gradients()
        if not self._pushed:
            self._passes_ended = 0
            self._touched.clear()

    def _end_pass(self) -> None:
        if self._state in IN_PASS:
            self._move(Event.PASS_OVER)

    def _lose_pass(self) -> None:
        """Ends a pass that has failed: nobody has told the exchange that it ended."""
        self._adapter.forget_pass()
        self._end_pass()

    # What leaves.

    def _declare(self) -> None:
        for index in self._active:
            self._tensors[index] = self._tensor_of(index, self._adapter.dtype_of(index))
        self._adapter.declare(list(self._tensors.values()))

    def _push(self, index: int) -> None:
        if not self._tensors:
            self._declare()
        if index in self._pushed:
            self._refuse(Refusal.CAME_AGAIN, index)
        dtype = self._adapter.dtype_of(index)
        tensor = self._tensors.get(index)
        if tensor is None or tensor.dtype != dtype:
            tensor = self._tensors[index] = self._tensor_of(index, dtype)
        with _interrupts.held:  # A push that nobody has noted would be made again.
            self._pushed[index] = self._adapter.start(tensor, index in self._touched)
            if len(self._pushed) == 1:
                self._move(Event.PUSHED)

    def begin(self, has_batch: bool = True) -> None:
        """Pushes all gradients that backward has not. Does nothing if all are under way."""
        self._lose_pass()
        if self._rounds is not None:
            return
        self.activate()
        if has_batch:
            untouched = [index for index in self._active if index not in self._touched]
            self._touched.update(index for index in untouched if self._adapter.is_new(index))
        for index in self._active:
            if index not in self._pushed:
                self._push(index)
        with _interrupts.held:
            if self._leaves_out and (self._names.are_alike or self._adapter.began_apart()):
                rounds, count = self._without_marks(), len(self._parameters)
                self._thaws.begin(self._suffix, count, self._frozen, _MARKS_PRIORITY)
            else:
                # One byte for each parameter, and a last byte for the rank itself.
                marks = bytearray(len(self._parameters) + 1)
                for index in self._touched:
                    marks[index] = 1
                marks[-1] = _BATCH if has_batch else _NO_BATCH
                self.has_said_loss = has_batch and self.evaluates
                if self.has_said_loss:
                    marks[-1] = _BATCH_AND_LOSS
                rounds = _Rounds(self._touched, self._pushed, marks, None)
                self._start_marks(rounds, marks)
                self._thaws.on_compared(self._frozen)
            self._rounds = rounds
            self._touched, self._pushed, self._passes_ended = set(), {}, 0
            self._move(Event.ALL_PUSHED)

    @property
    def _texts(self) -> list[str]:
        """What ranks compare: a text for each parameter."""
        frozen = set(self._frozen) if self._leaves_out else set()
        return [
            f"{parameter}, frozen" if index in frozen else str(parameter)
            for index, parameter in enumerate(self._parameters)
        ]

    def _start_marks(self, rounds: _Rounds, marks: bytearray) -> None:
        self._digest = self._digest or digest_of(self._texts)
        said = marks + self._digest
        name = f"{self.name}.used{self._suffix}"
        rounds.marks_ticket = self._adapter.start_marks(name, said, _MARKS_PRIORITY)
        rounds.marks, rounds.marks_are_there = said, False

    def _without_marks(self) -> _Rounds:
        marks = bytearray(len(self._parameters) + 1 + 2 * DIGEST_BYTES)
        for index in self._active:
            marks[index] = 1
        rounds = _Rounds(self._touched, self._pushed, marks, None)
        rounds.marks_are_there = True
        return rounds

    # What comes.

    def take(self, indices: Iterable[int]) -> list[tuple[int, Any]]:
        """Waits for these parameters' averages of the exchange that has begun; returns them.

        Leaves out a parameter for which no rank had a gradient, and one that has been taken before.
        """
        rounds = self._rounds
        if rounds is None:
            return []
        with _interrupts.held:
            if self._thaws.finish():
                self._names.are_alike = False
                self._start_marks(rounds, rounds.marks[: -2 * DIGEST_BYTES])
        if not self._names.are_alike:
            # If the names differ, other ranks never push the rounds that this rank waits for.
            self._finish_marks(rounds)
        averages: list[tuple[int, Any]] = []
        for index in indices:
            if index not in rounds.open:
                continue
            counts = index in rounds.touched or self._finish_marks(rounds)[index]
            with _interrupts.held:
                average = self._adapter.finish(rounds.open[index])
                del rounds.open[index]  # Not before: a wait that is interrupted is gone on with.
                rounds.taken.add(index)
                if counts:
                    averages.append((index, average))
        if not rounds.open:
            marks = self._finish_marks(rounds)
            self._rounds = None
            self._move(Event.ALL_TAKEN)
            self._unused = [index for index in range(len(marks) - 1) if not marks[index]]
            for index in self._frozen:
                if index < len(marks) - 1 and marks[index]:  # That rank waits for this one's.
                    self._refuse(Refusal.FROZEN_HERE, index)
        return averages

    def _finish_marks(self, rounds: _Rounds) -> Sequence[int]:
        if not rounds.marks_are_there:
            self._adapter.finish(rounds.marks_ticket)
            rounds.marks_are_there = True
            self._names.check(rounds.marks[-2 * DIGEST_BYTES :], self._texts)
        if self._names.mismatch is not None:
            raise self._names.mismatch
        return memoryview(rounds.marks)[: -2 * DIGEST_BYTES]

    def _by_arrival(self, rounds: _Rounds) -> list[int]:
        """Returns the open rounds in the order in which their averages are likely to arrive.

        Over a network the rounds that were pushed early have arrived, and the most urgent of the
        others overtake the rest.
        """
        tickets = rounds.open
        if self._adapter.comes_in_order():
            return list(tickets)
        there = list(
            itertools.takewhile(lambda index: self._adapter.is_there(tickets[index]), tickets)
        )
        return there + sorted(tickets.keys() - set(there))

    def _put_back(self) -> None:
        if self._rounds is not None:
            for index in self._by_arrival(self._rounds):
                with _interrupts.held:
                    for _, average in self.take([index]):
                        self._adapter.put(index, average)
            self.take([])  # Needed if there is no parameter.

    def synchronize(self) -> None:
        """Averages what was accumulated since the last step. Does nothing if that is done."""
        self._lose_pass()
        if self._state is State.AVERAGED:
            self._check_assigned(self._unused)
            return
        if self._state is State.NEXT_PARTLY_PUSHED:
            self._put_back()
        self.begin()
        with _interrupts.held:  # A wait may be interrupted, and what follows the last one may not.
            self._put_back()
            self._adapter.note_gradients()
            self._move(Event.PUT_BACK)

    def begin_anew(self) -> None:
        """Starts again, because the client that had the rounds is gone: no gradient has left."""
        self._adapter.forget_pass()
        self._state = State.COLLECTING
        self._rounds = None
        self._touched, self._pushed, self._passes_ended = set(), {}, 0
        self._tensors.clear()  # The tensors are declared again.
        self._unused = []
        # The job may be another one. Its ranks may have other parameters, or exchange marks again.
        self._names.begin_anew()
        self._thaws.begin_anew()

    def discard(self) -> None:
        """Takes the open averages and drops them."""
        self.take(range(len(self._parameters)))

    def check_unchanged(self) -> None:
        """Raises InvalidArgument if a gradient has changed since it was pushed."""
        rounds = self._rounds
        if rounds is None:
            return
        own = rounds.open.keys() & rounds.touched
        self._check_assigned(
            index for index in self._active if index not in own and index not in rounds.taken
        )
        for index, ticket in rounds.open.items():
            if index in own and not self._adapter.is_as_pushed(index, ticket):
                self._refuse(Refusal.CHANGED, index)

    def _check_assigned(self, indices: Iterable[int]) -> None:
        """Raises InvalidArgument if one of these has a gradient that no rank had pushed."""
        for index in indices:
            if self._adapter.is_assigned(index):
                self._refuse(Refusal.ASSIGNED_LATE, index)

    # Ranks whose batches have run out.

    def join(self, first_step: int) -> int:
        """Takes part without gradients until no rank has any. Returns the rank with the most steps.

        Steps are counted from `first_step` on: the value of `steps` before the loop.
        """
        self.require_join()
        while self.shadow():
            pass
        steps = self._adapter.gather(self.steps - first_step, f"{self.name}.join")
        return steps.index(max(steps))

    def require_join(self) -> None:
        """Raises InvalidArgument if join() does not work with this exchange."""
        if self._leaves_out:
            raise InvalidArgument(
                "join() needs every rank in each round, and patience lets rounds go on without late "
                "ranks: leave out patience=, or give every rank the same number of batches"
            )

    def forget_accumulated(self) -> None:
        """Drops gradients that no step will use, unless the averages are under way."""
        if self._rounds is None:
            self._touched.clear()

    def shadow(self) -> bool:
        """Takes part in one exchange without gradients; returns whether any rank still had some."""
        self.forget_accumulated()
        self.begin(has_batch=False)
        rounds = self._rounds
        assert rounds is not None
        self.discard()
        has_batch = self._finish_marks(rounds)[-1]
        if has_batch == _BATCH_AND_LOSS:
            self._adapter.give_no_loss()
        return has_batch != _NO_BATCH
