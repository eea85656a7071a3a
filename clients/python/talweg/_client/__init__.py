# SPDX-License-Identifier: Apache-2.0
"""This rank in its job: its connection to the agent, its tensors and its open rounds.

client       the rank: one connection
process      the client of this process
late         a rank that comes when its job has finished
hooks        the calls that frameworks register for the end of a step
agents       connects to the node's agent, for the first time or again
local        takes the place of an agent in a job of one rank that no launcher has started
declared     the tensors that the rank has declared, by their names
in_place     the memory of tensors that the node's ranks sum in place
handles      open rounds, as callers hold them
left_rounds  open rounds whose callers no longer wait for them
completions  the calls that are made when rounds are over
deadlines    the calls that are made at a given time
attention    how a waiting thread carries on open calls meanwhile
"""

from talweg._client.client import Client as Client
from talweg._client.client import NamesWatcher as NamesWatcher
from talweg._client.declared import Declared as Declared
from talweg._client.handles import Handle as Handle
from talweg._client.handles import HandleOfMany as HandleOfMany
from talweg._client.handles import group_of as group_of
from talweg._client.hooks import call_at_end_of_step as call_at_end_of_step
from talweg._client.hooks import call_when_numbers_change as call_when_numbers_change
from talweg._client.process import call_when_replaced as call_when_replaced
from talweg._client.process import connect as connect
from talweg._client.process import current as current
from talweg._client.process import disconnect as disconnect
from talweg._client.process import follow as follow
from talweg._client.process import has_numbers as has_numbers
from talweg._client.process import is_connected as is_connected
from talweg._client.process import replace as replace
