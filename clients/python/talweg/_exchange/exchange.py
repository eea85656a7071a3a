# SPDX-License-Identifier: Apache-2.0
"""The exchange of one optimizer's gradients: when each leaves, and whose averages count.

The exchange knows steps, passes, priorities, parameters that nobody used, and ranks that have left
their loop; it knows no framework. A framework's module tells it what happens (on_...), asks it for
averages, and lends it an Adapter.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any, NoReturn

from talweg import _interrupts
from talweg._arguments import passes_of
from talweg._exchange.adapter import DENSE, UNKNOWN, Adapter, Parameter, Refusal, Tensor
from talweg._exchange.forms import Forms
from talweg._exchange.marks import BATCH, BATCH_AND_LOSS, NO_BATCH, Marks
from talweg._exchange.names import FROZEN, Names, digest_of
from talweg._exchange.states import IN_PASS, LEFT_OPEN, TRANSITIONS, Event, State
from talweg._exchange.thaws import Thaws
from talweg.errors import InternalError, InvalidArgument

# The marks, which say which gradients count, are few bytes, and updates wait for them.
_MARKS_PRIORITY = 2**30


def _texts(parameters: Iterable[Parameter], indices: Iterable[int]) -> list[str]:
    """Returns what ranks compare: a text for each parameter. Those of `indices` are frozen."""
    frozen = set(indices)
    return [
        f"{parameter}{FROZEN}" if index in frozen else str(parameter)
        for index, parameter in enumerate(parameters)
    ]


class _Rounds:
    """One step's open averages: every parameter's round, and the round of the marks."""

    def __init__(
        self,
        touched: set[int],
        open_: dict[int, Any],
        held: list[int],
        marks: Marks,
        has_batch: bool,
    ) -> None:
        self.has_batch = has_batch
        self.touched = touched  # The parameters that have a gradient here.
        self.open = open_  # Tickets, in the order in which the rounds were started.
        self.held = held  # Parameters that leave when the marks tell their form.
        self.taken: set[int] = set()
        self.marks = marks
        self.marks_ticket: Any = None  # None: the marks are there.


class GradientExchange:
    """Pushes each gradient when it is ready, and returns the averages.

    The last backward pass of a step pushes a parameter's gradient at the moment it is accumulated.
    When that pass ends, the other parameters follow, because every rank pushes every tensor in
    every round: the gradient that a parameter has kept from before, or zeros. The marks, one byte
    for each parameter, travel beside the gradients. They say for which parameters any rank had a
    gradient. A parameter that nobody used keeps the gradient (or the lack of one) that it had.

    The marks also tell which gradients are sparse. Until that is agreed for a parameter, its
    gradient may leave later (Forms, in forms.py).

    With `leaves_out` a round may go on without late ranks. The marks would wait for them. So marks
    are exchanged until the parameters are known to be alike, and after that every active parameter
    counts that is not frozen. A joiner comes when the others exchange none any more. Thaws
    (thaws.py) says when ranks have to compare again.

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
        self._is_used_up = False  # The program has done with what was pushed last.
        self._unused: list[int] = []  # No rank had a gradient of these in the last exchange.
        self._forms = Forms(adapter)
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
        self._passes = passes_of(passes)

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
        self._forms.agree_to_dense(thawed)

    def _tensor_of(self, index: int, dtype: Hashable) -> Tensor:
        parameter = self._parameters[index]
        name = f"{self.name}.gradient.{parameter.name}{self._adapter.suffix_of(index)}"
        # The dtype of a tensor's name never changes, but a model's dtype may.
        if dtype != parameter.dtype:
            name = f"{name}.{dtype}"
        return Tensor(index, name, dtype, self._adapter.priority_of(index))

    # What happens.

    def on_gradient(self, index: int, is_final: bool = True) -> None:
        """Notes that a pass has accumulated a gradient. The first one begins the pass.

        A gradient that something else may still change is not final. It leaves when the pass ends.
        """
        if self._state not in IN_PASS:
            self._adapter.watch_pass()
            if self._state is State.BEGUN and not self._is_used_up:
                self._refuse(Refusal.UNDER_WAY, index)
            self._move(Event.GRADIENT)
        self._touched.add(index)
        is_last = self._passes_ended + 1 >= self._passes
        if is_final and is_last and self._forms.is_agreed(index):
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
        self._is_used_up = True
        self._adapter.note_gradients()

    def on_zero_grad(self) -> None:
        """Notes that the accumulated gradients and the averages are gone."""
        self._lose_pass()
        self._move(Event.ZERO_GRAD)
        self._is_used_up = True
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

    def _declare(self, indices: Iterable[int]) -> None:
        new = {index: self._tensor_of(index, self._adapter.dtype_of(index)) for index in indices}
        self._tensors.update(new)
        if new:
            self._adapter.declare(list(new.values()))

    def _push(self, index: int, has_batch: bool = True) -> None:
        if index in self._pushed:
            self._refuse(Refusal.CAME_AGAIN, index)
        if not self._tensors:
            self._declare(other for other in self._active if self._forms.agreed(other) == DENSE)
        with _interrupts.held:  # A push that nobody has noted would be made again.
            self._pushed[index] = self._start(index, self._touched, has_batch)
            if len(self._pushed) == 1:
                self._move(Event.PUSHED)

    def _start(self, index: int, touched: set[int], has_batch: bool) -> Any:
        dtype = self._adapter.dtype_of(index)
        form = self._forms.agreed(index)
        if form not in (UNKNOWN, DENSE):
            tensor = self._tensor_of(index, dtype)
            if has_batch and index not in touched:
                return self._adapter.start_kept(tensor, form)
            return self._adapter.start_sparse(tensor, index in touched, form)
        known = self._tensors.get(index)
        if known is None or known.dtype != dtype:
            known = self._tensors[index] = self._tensor_of(index, dtype)
        # Other ranks add to what an earlier pass has left here. A rank in join() adds nothing.
        if has_batch and index not in touched:
            return self._adapter.start_kept(known, DENSE)
        return self._adapter.start(known, index in touched)

    def begin(self, has_batch: bool = True) -> None:
        """Pushes all gradients that backward has not. Does nothing if all are under way."""
        self._lose_pass()
        if self._rounds is not None:
            return
        self.activate()
        if has_batch:
            untouched = [index for index in self._active if index not in self._touched]
            self._touched.update(index for index in untouched if self._adapter.is_new(index))
        forms = {index: self._forms.here(index, index in self._touched) for index in self._active}
        held = self._forms.held(forms)
        if not self._tensors:
            self._declare(index for index, form in forms.items() if form == DENSE)
        waiting = set(held)
        for index in forms:
            if index not in self._pushed and index not in waiting:
                self._push(index, has_batch)
        with _interrupts.held:
            marks = Marks(len(self._parameters))
            rounds = _Rounds(self._touched, self._pushed, held, marks, has_batch)
            self._mark(rounds, has_batch, forms)
            self._rounds = rounds
            self._touched, self._pushed, self._passes_ended = set(), {}, 0
            self._is_used_up = False
            self._move(Event.ALL_PUSHED)

    def _mark(self, rounds: _Rounds, has_batch: bool, forms: Mapping[int, int]) -> None:
        """Marks what this rank has, and starts the round that tells it."""
        marks = rounds.marks
        for index, form in forms.items():
            marks.forms[index] = form
        if self._leaves_out and (self._names.are_alike or self._adapter.began_apart()):
            for index in self._active:
                # The optimizer would go on with zeros: with its momentum, and its weight decay.
                is_used = index in self._touched or self._adapter.is_trainable(index)
                marks.used[index] = int(is_used)
            self._thaws.begin(self._suffix, len(marks.used), self._frozen, _MARKS_PRIORITY)
            return
        for index in self._touched:
            marks.used[index] = 1
        self.has_said_loss = has_batch and self.evaluates
        marks.batch[0] = BATCH if has_batch else NO_BATCH
        if self.has_said_loss:
            marks.batch[0] = BATCH_AND_LOSS
        self._start_marks(rounds)
        self._thaws.on_compared(self._frozen)

    def _start_marks(self, rounds: _Rounds) -> None:
        if self._digest is None:
            self._digest = digest_of(
                _texts(self._parameters, self._frozen if self._leaves_out else ())
            )
        rounds.marks.digest[:] = self._digest
        name, data = f"{self.name}.used{self._suffix}", rounds.marks.data
        rounds.marks_ticket = self._adapter.start_marks(name, data, _MARKS_PRIORITY)

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
                self._start_marks(rounds)
        if rounds.held or not self._names.are_alike:
            # If the names differ, other ranks never push the rounds that this rank waits for.
            self._finish_marks(rounds)
        averages: list[tuple[int, Any]] = []
        for index in indices:
            if index not in rounds.open:
                continue
            counts = index in rounds.touched or self._finish_marks(rounds).used[index]
            with _interrupts.held:
                ticket = rounds.open[index]
                average = self._adapter.finish(ticket)
                del rounds.open[index]  # Not before: a wait that is interrupted is gone on with.
                rounds.taken.add(index)
                if counts:
                    averages.append((index, average))
                else:
                    self._adapter.drop(ticket)
        if not rounds.open:
            marks = self._finish_marks(rounds)
            self._rounds = None
            self._move(Event.ALL_TAKEN)
            self._unused = [index for index, used in enumerate(marks.used) if not used]
            for index in self._frozen:
                if index < len(marks.used) and marks.used[index]:  # That rank waits for this one's.
                    self._refuse(Refusal.FROZEN_HERE, index)
        return averages

    def _finish_marks(self, rounds: _Rounds) -> Marks:
        """Waits for the marks, and pushes what was held for them."""
        if rounds.marks_ticket is not None:
            self._adapter.finish(rounds.marks_ticket)
            rounds.marks_ticket = None
            self._names.check(
                rounds.marks.digest,
                _texts(self._parameters, self._frozen if self._leaves_out else ()),
            )
            for index in self._active:
                if index < len(rounds.marks.forms):
                    self._forms.hear(index, rounds.marks.forms[index])
        if self._names.mismatch is not None:
            raise self._names.mismatch
        for index in self._forms.refused[:1]:
            self._refuse(Refusal.DENSE_ELSEWHERE, index)
        dense = [index for index in rounds.held if self._forms.agreed(index) == DENSE]
        self._declare(index for index in dense if index not in self._tensors)
        while rounds.held:
            index = rounds.held[0]
            with _interrupts.held:  # A push that nobody has noted would be made again.
                if self._forms.is_agreed(index):
                    rounds.open[index] = self._start(index, rounds.touched, rounds.has_batch)
                del rounds.held[0]
        return rounds.marks

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
            if self._rounds.held:
                self._finish_marks(self._rounds)
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
        self._forms.begin_anew(self._active)
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
        if rounds.held:
            self._finish_marks(rounds)
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
        batch = self._finish_marks(rounds).batch[0]
        if batch == BATCH_AND_LOSS:
            self._adapter.give_no_loss()
        return batch != NO_BATCH
