# SPDX-License-Identifier: Apache-2.0
"""The steps of LocalSGD and DiLoCo: docs/local_steps.md."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from talweg import _client, _interrupts
from talweg._client import Client
from talweg._collectives import objects
from talweg._collectives.process_sets import ProcessSet
from talweg._exchange.differences import raise_names
from talweg.errors import InvalidArgument, Mismatch, TalwegError
from talweg.torch import _local_agreement as agreement
from talweg.torch._local_parts import (
    Fragment,
    Others,
    Part,
    buffers_of,
    require_dense,
    slices_of,
    state_of,
)
from talweg.torch._local_rounds import Comparison, Flight, Round, Rounds
from talweg.torch._local_rule import Rule, cut


class LocalSteps:
    """Counts the steps of an optimizer, and synchronises what they change.

    One thread at a time.
    """

    _all: ClassVar[weakref.WeakSet[LocalSteps]] = weakref.WeakSet()

    def __init__(
        self,
        caller: str,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        rule: Rule,
        name: str,
        process_set: ProcessSet | None,
    ) -> None:
        self.rule = rule
        self.steps = 0
        self._caller = caller
        self._model = model
        # The optimizer has this object. In a cycle, what is under way would stay so for a while after
        # the program has dropped the optimizer.
        self._optimizer_ref = weakref.ref(optimizer)
        self._parts: dict[torch.nn.Parameter, Part] = {}
        parts = self._take_in()
        rule.require(caller, len(parts))
        places = cut([part.local.numel() for part in parts], rule.fragments)
        self._fragments = [
            Fragment(number, parts[place.start : place.stop]) for number, place in enumerate(places)
        ]
        self._flights: list[Flight] = []
        # What is to be sent: fragment, the text that ranks compare, when it is due, and its rule.
        self._unsent: list[tuple[Fragment, str, int, Rule]] = []
        # The fragment in whose comparison the next agreement begins. None: the ranks have agreed.
        self.agrees_at: int | None = 0
        self._opening: Round | None = None  # That comparison, if it is under way.
        self._is_cut_short = False  # An interrupt has ended the agreement after it.
        self._is_lent = False  # The model has the global parameters.
        self._rounds = Rounds(_client.current(), caller, name, process_set)
        _client.call_when_replaced(self._use)
        self._all.add(self)

    def _use(self, client: Client) -> None:
        """Goes on with `client`, the process's new one. What is not applied yet comes to nothing:
        it is a part of the next differences.
        """
        self._rounds.use(client)
        self._go_apart()

    def end(self) -> None:
        """Ends the steps: the optimizer goes on without them."""
        self._leave()
        self._all.discard(self)

    def _leave(self) -> None:
        """Leaves what is under way."""
        self._unsent = []
        while self._flights:
            self._flights.pop().drop()

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        optimizer = self._optimizer_ref()
        assert optimizer is not None
        return optimizer

    def _take_in(self) -> list[Part]:
        """Returns the parts of the optimizer's parameters that have none yet, in the model's order."""
        owned = [p for group in self._optimizer.param_groups for p in group["params"]]
        wanted = {parameter for parameter in owned if parameter not in self._parts}
        new: list[Part] = []
        for name, parameter in self._model.named_parameters():
            if parameter not in wanted:
                continue
            wanted.discard(parameter)
            require_dense(self._caller, name, parameter)
            if parameter.numel() > 0 and (parameter.is_floating_point() or parameter.is_complex()):
                new.append(Part(name, parameter))
        if wanted:
            raise InvalidArgument(
                f"{self._caller}: {len(wanted)} of the optimizer's {len(owned)} parameters are not the "
                "model's: give it the model that has all of them (several models: a ModuleList)"
            )
        self._parts.update((part.parameter, part) for part in new)
        return new

    def add(self) -> None:
        """Takes in parameters that the optimizer has got, at all ranks alike."""
        self._fragments[-1].parts += self._take_in()
        self.agree_anew()

    def agree_anew(self) -> None:
        """Has the ranks agree in the next step. All ranks call it after the same step."""
        if self.agrees_at is None:
            self.agrees_at = self.rule.next_sent(self.steps)

    @property
    def is_synchronized(self) -> bool:
        """Whether each parameter is the global one."""
        if self.agrees_at is not None:
            return False
        return not self._flights and not any(each.moved for each in self._fragments)

    def shared(self) -> Iterator[tuple[str, torch.nn.Parameter, list[torch.Tensor]]]:
        """Yields each parameter that takes part, and what all ranks have alike of it."""
        for part in self._parts.values():
            if part.x0 is not None:
                yield part.name, part.parameter, part.kept

    # ----- Steps -----

    def before_step(self) -> None:
        if self._is_lent:
            raise InvalidArgument(
                f"{self._caller}: step() within global_parameters(), where the model has other "
                "parameters than this rank's: make steps outside of it"
            )
        self._go_on()
        thawed = [p for p in self._parts.values() if p.x0 is None and p.parameter.requires_grad]
        if thawed:
            self.agree_anew()
        self._agree()
        with torch.no_grad():
            for part in thawed:
                if part.x0 is None:
                    part.begin()

    def after_step(self) -> None:
        """Counts a step. Applies what is due, and sends what is due."""
        with _interrupts.held:
            self.steps += 1
            for fragment in self._fragments:
                fragment.note_step()
            text, due = f"step {self.steps}", self.steps + self.rule.delay
            numbers = self.rule.sent_after(self.steps)
            self._unsent = [(self._fragments[n], text, due, self.rule) for n in numbers]
        self._go_on()

    def flush(self) -> None:
        """Makes the parameters of all ranks equal."""
        if self._is_lent:
            raise InvalidArgument(f"{self._caller}: flush() within global_parameters()")
        self._go_on()
        self._agree()
        while self._flights:
            self._apply(self._flights[0])
        text, plain = f"flush() after step {self.steps}", Rule(self.rule.every)
        moved = [fragment for fragment in self._fragments if fragment.moved]
        self._unsent = [(fragment, text, self.steps, plain) for fragment in moved]
        self._go_on()

    def _go_on(self) -> None:
        """Applies what is due, and sends what is to be sent. If an interrupt ends that, the next
        call does the rest: other ranks wait for it.
        """
        for flight in list(self._flights):
            self._launch(flight)
        self._apply_due()
        while self._unsent:
            flight = self._prepared(*self._unsent[0])
            with _interrupts.held:
                del self._unsent[0]
                self._flights.append(flight)
            self._launch(flight)
        self._apply_due()

    def _apply_due(self) -> None:
        for flight in [each for each in self._flights if each.due <= self.steps]:
            self._apply(flight)

    @contextlib.contextmanager
    def _dropped_on_error(self, flight: Flight) -> Iterator[None]:
        """Drops the flight if its rounds fail: what the fragment has moved by is then a part of its
        next difference. An interrupt fails nothing.
        """
        try:
            yield
        except TalwegError as error:
            self._unsent = []
            self._flights.remove(flight)
            flight.drop()
            if isinstance(error, Mismatch):
                self._go_apart()
            raise

    def _go_apart(self) -> None:
        """Has ranks agree, which have all found that they differ, if the program goes on."""
        self._leave()
        self._opening, self.agrees_at = None, 0
        self._is_cut_short = False

    def _launch(self, flight: Flight) -> None:
        with self._dropped_on_error(flight):
            flight.launch()

    def _take(self, flight: Flight) -> None:
        with self._dropped_on_error(flight):
            flight.take()

    def _others(self, fragment: Fragment, parts: list[Part]) -> Others:
        """Returns the tensors that become their means when the fragment's parts are applied."""
        if fragment is not self._fragments[-1]:
            return Others([], {}, parts)
        buffers = buffers_of(self._model) if self.rule.average_buffers else []
        state = state_of(self._optimizer, parts) if self.rule.average_state else {}
        return Others(buffers, state, parts)

    def _prepared(self, fragment: Fragment, what: str, due: int, rule: Rule) -> Flight:
        """Returns the flight of a fragment, whose rounds launch() starts."""
        is_flush = rule is not self.rule
        # flush() makes all equal, whatever the program has done to parameters that are frozen.
        parts = fragment.taking_part() if is_flush else fragment.travelling()
        rounds, others = self._rounds, self._others(fragment, parts)
        shapes = [list(each.shape) for each in others.buffers]
        names = "\0".join([*map(str, parts), str(shapes)])
        having = hashlib.blake2b(names.encode(), digest_size=4).hexdigest()
        text = (
            f"{what}, fragment {fragment.number} with {len(parts)} parameters and "
            f"{len(others.buffers)} buffers ({having})"
        )
        shared = ""
        if is_flush or rule.compares_shared(fragment.number, self.steps):
            shared = f"{agreement.digest_of(each for part in parts for each in part.kept):016x}"
        average = fragment.buffer(parts) if parts else torch.empty(0)
        flight = Flight(fragment.number, due, rule, parts, average, None, others)
        comparison: Comparison | None = None

        def send_comparison() -> Round:
            nonlocal comparison
            comparison = rounds.compare(
                text, f"alike.{fragment.number}", shared, str(sorted(others.layout.items()))
            )
            return comparison

        @torch.no_grad()
        def send_differences() -> Round:
            for part, elements in slices_of(parts, average):
                part.difference(elements)
            return rounds.average(average, f"fragment.{fragment.number}")

        @torch.no_grad()
        def send_others() -> Round | None:
            if self.rule.average_state:
                assert comparison is not None
                comparison.finish()
                if comparison.layouts_differ:
                    told = rounds.tell(others.layout, f"state.{fragment.number}")
                    others.complete(told, rounds.title)
            numbers = others.numbers()
            if numbers.numel() == 0:
                return None
            flight.means = numbers
            return rounds.average(numbers, "means")

        flight.starts.append(send_comparison)
        if parts:
            flight.starts.append(send_differences)
        flight.starts.append(send_others)
        return flight

    @torch.no_grad()
    def _apply(self, flight: Flight) -> None:
        self._take(flight)
        fragment, rule = self._fragments[flight.fragment], flight.rule
        with _interrupts.held:  # All of it is applied, or nothing.
            self._flights.remove(flight)
            for part, mean in slices_of(flight.parts, flight.average):
                part.make_outer_step(mean, rule)
                part.put(rule.mix)
                part.has_moved = False
            if flight.means is not None:
                others = flight.others or self._others(fragment, flight.parts)
                others.put(flight.means, rule.mix)
            fragment.moved = rule.mix > 0

    @contextlib.contextmanager
    def lend(self) -> Iterator[None]:
        """Gives the model the global parameters within this context."""
        if self._is_lent:
            raise InvalidArgument(f"{self._caller}: global_parameters() within itself")
        parts = [part for part in self._parts.values() if part.x0 is not None]
        own = [part.local.clone() for part in parts]
        self._is_lent = True
        changed: list[str] = []
        try:
            with torch.no_grad():
                for part in parts:
                    part.put(0)
            yield
            changed = [p.name for p in parts if not p.has(p.shared.to(p.local.dtype))]
        finally:
            with torch.no_grad():
                for part, mine in zip(parts, own):
                    part.local.copy_(mine)
            self._is_lent = False
        if changed:
            raise InvalidArgument(
                f"{self._caller}: parameter '{changed[0]}' has been changed within "
                "global_parameters(), and has this rank's values again: load and change parameters "
                "outside of it"
            )

    # ----- Agreements -----

    def _agree(self) -> None:
        """Makes ranks alike, unless they have agreed. Those that begin with something else take
        what the lowest rank has that has loaded a state, or else the lowest rank.
        """
        if self.agrees_at is None:
            return
        if self._is_cut_short:
            raise InvalidArgument(
                f"{self._rounds.title}: an interrupt or an error has ended this rank's agreement half "
                "way, and the others go on from it: end this rank's program, and start it again"
            )
        if self._rounds.group.size > 1:
            try:
                self._open()
                self._is_cut_short = True
                self._make_alike()
                self._is_cut_short = False
            except TalwegError:
                self._go_apart()
                raise
        self._opening = self.agrees_at = None

    def _open(self) -> None:
        """Returns when all ranks are about to agree. Raises Mismatch if one is not."""
        if self._opening is None:
            with _interrupts.held:
                self._opening = self._rounds.compare(
                    "the agreement after the optimizer was made, has loaded a state or has got "
                    "parameters",
                    f"alike.{self.agrees_at}",
                )
        self._opening.finish()

    def _make_alike(self) -> None:
        rounds, parts = self._rounds, list(self._parts.values())
        has_begun = any(part.x0 is not None for part in parts)
        others = self._others_of_model()
        names = [*map(str, parts), *(agreement.describe(*each) for each in others)]
        having = hashlib.blake2b("\0".join(names).encode()).hexdigest()
        text = "\0".join([str(self.steps), *(part.name for part in parts if part.x0 is not None)])
        shared = agreement.digest_of((each for part in parts for each in part.kept), text)
        fresh = [part.parameter for part in parts if part.x0 is None]
        everything = [*(part.parameter for part in parts), *(each for _, each in others)]
        if not has_begun:
            fresh = everything
        own = (self.rule.values(), having, has_begun, shared, agreement.digest_of(fresh))
        told = rounds.tell(own, "agree")
        agreement.require_same_arguments(rounds, [(rank, each[0]) for rank, each in told])
        if len({each[1] for _, each in told}) > 1:
            raise_names(rounds.title, rounds.tell(names, "names"))
        if len({each[2:4] for _, each in told}) > 1:
            roots = [rank for rank, each in told if each[2]] or [rank for rank, _ in told]
            self._take_over(roots[0])
            agreement.broadcast(rounds, everything, "begin", roots[0])
        elif len({each[4] for _, each in told}) > 1:
            agreement.broadcast(rounds, fresh, "begin", told[0][0])

    def _others_of_model(self) -> list[tuple[str, torch.Tensor]]:
        """Returns the model's parameters that no optimizer with local steps has, and its buffers."""
        if len(self._all) > 1:
            gc.collect()  # Ranks must not differ in which dropped optimizers they still have.
        taken = {p for each in self._all if each is not self for p in each._parts}
        return [
            *(
                (name, each)
                for name, each in self._model.named_parameters()
                if each not in self._parts and each not in taken and agreement.is_dense(each)
            ),
            *agreement.buffers_of_all_kinds(self._model),
        ]

    def _take_over(self, root: int) -> None:
        """Takes over the root's state."""
        rounds = self._rounds
        is_root = rounds.client.rank == root
        told = self.state_dict() if is_root else None
        if told is not None:  # Tensors of a GPU stay at their rank.
            told = _on_host(told)
        name = f"{rounds.name}.state"
        own = objects.broadcast_object(rounds.client, told, root, name, rounds.process_set)
        if not is_root:
            self.load_state_dict(own)

    # ----- Checkpoints -----

    def state_dict(self) -> dict[str, Any]:
        """Returns what a rank needs to go on, beside the model and the optimizer's own state."""
        self._go_on()
        for flight in list(self._flights):
            self._take(flight)
        return {
            "arguments": self.rule.values(),
            "steps": self.steps,
            "moved": [fragment.moved for fragment in self._fragments],
            "have_moved": [part.name for part in self._parts.values() if part.has_moved],
            "parameters": {
                part.name: {"x0": part.x0, "momentum": part.momentum}
                for part in self._parts.values()
                if part.x0 is not None
            },
            "flights": [
                {
                    "fragment": flight.fragment,
                    "due": flight.due,
                    "parameters": {
                        part.name: mean.clone()
                        for part, mean in slices_of(flight.parts, flight.average)
                    },
                    "means": flight.means,
                }
                for flight in self._flights
            ],
        }

    def require_fits(self, state: dict[str, Any] | None) -> None:
        """Raises Mismatch or InvalidArgument for a state that cannot be loaded. Changes nothing."""
        if state is None:
            return
        differs = self.rule.difference(state["arguments"])
        if differs is not None:
            raise Mismatch(
                f"{self._rounds.title} has {differs[0]}, and the state that is loaded was saved with "
                f"{differs[1]}: give the same arguments, or delete its entry 'talweg_local' to begin "
                "anew"
            )
        known = {part.name: part for part in self._parts.values()}
        for name in [*state["parameters"], *(n for f in state["flights"] for n in f["parameters"])]:
            if name not in known:
                raise Mismatch(
                    f"{self._rounds.title}: the state that is loaded has the parameter '{name}', which "
                    "the optimizer has not: load the state of the same model"
                )
        for name, values in state["parameters"].items():
            known[name].require_fits(**values)
        for flight in state["flights"]:
            for name, mean in flight["parameters"].items():
                known[name].require_count(mean)

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Goes on from a state_dict(). None: begins anew with the parameters of the next step."""
        self.require_fits(state)
        self._leave()
        self.agree_anew()
        if state is None:
            self.steps = 0
            for part in self._parts.values():
                part.x0 = part.momentum = None
                part.has_moved = False
            for fragment in self._fragments:
                fragment.moved = False
            return
        known = {part.name: part for part in self._parts.values()}
        nothing = {"x0": None, "momentum": None}
        for name, part in known.items():
            part.load(**state["parameters"].get(name, nothing))
            part.has_moved = name in state.get("have_moved", known)  # Older states do not say it.
        self.steps = int(state["steps"])
        for fragment, moved in zip(self._fragments, state["moved"]):
            fragment.moved = bool(moved)
        self._flights = [self._loaded(each, known) for each in state["flights"]]

    def _loaded(self, told: dict[str, Any], known: dict[str, Part]) -> Flight:
        parts = [known[name] for name in told["parameters"]]
        average = torch.empty(0)
        if parts:
            average = self._fragments[told["fragment"]].buffer(parts).clone()
            for part, elements in slices_of(parts, average):
                elements.copy_(told["parameters"][part.name])
        means = told["means"]
        means = None if means is None else means.detach().to("cpu", torch.float64, copy=True)
        return Flight(told["fragment"], told["due"], self.rule, parts, average, means)


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_host(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_on_host(each) for each in value]
    return value
