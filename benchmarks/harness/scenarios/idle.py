# SPDX-License-Identifier: Apache-2.0
"""Measures what the daemons use while an open job has nothing to do."""

from __future__ import annotations

from contextlib import ExitStack

from netns import Network

from harness import hosts
from harness.contender import Contender
from harness.contenders import TALWEG, talweg_on_one_node
from harness.hosts import Cluster
from harness.report import Bar, markdown_table
from harness.scenario import Context, Section, noted

TITLE = "Idle"
_CORES_MAX = 0.005
_SECONDS = {"smoke": 0.5, "quick": 3.0, "default": 20.0, "full": 60.0}


def run(context: Context) -> Section:
    section = Section(TITLE)
    programs = context.programs
    seconds = _SECONDS[context.mode]
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        context.progress("jobs start")
        with noted(context, section, ", the job of one node"):
            local = programs.in_own_network()
            contenders["one node"] = stack.enter_context(talweg_on_one_node(programs, 2, local))
        with noted(context, section, ", the job of several hosts"):
            names = ["host0", "host1", "aggregator"]
            network = stack.enter_context(Network(names, programs.congestion_control))
            cluster = Cluster(network, ("host0", "host1"), ("aggregator",))
            job = stack.enter_context(hosts.talweg(programs, cluster, f"{TALWEG} of hosts"))
            contenders["two hosts"] = job
        rows = []
        for name, contender in contenders.items():
            with noted(context, section, f", {name}"):
                # A daemon that has worked once may have more to keep going than one that has not.
                contender.measure("f32", [4096, 4 << 20], 1, 5, timeout_s=120)
                context.progress(f"{name}: nothing to do for {seconds:g} s")
                section.data[name] = cores = contender.idle_cores(seconds)
                for program, used in sorted(cores.items()):
                    if "talweg-" not in program:
                        continue
                    rows.append([name, program, f"{used:.3%}"])
                    text = f"{name}: share of a core that an idle {program} uses"
                    section.bars.append(Bar(text, f"< {_CORES_MAX}", used, used < _CORES_MAX))
    section.text = f"CPU time over {seconds:g} s after a few rounds, with ranks connected.\n\n"
    section.text += markdown_table(["job", "daemon", "of a core"], rows)
    return section
