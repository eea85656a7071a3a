# SPDX-License-Identifier: Apache-2.0
"""The exchange of one optimizer's gradients, for every framework.

exchange     when each gradient leaves, and whose averages count
states       the states of the exchange, and its transitions
forms        which gradients are sparse
marks        what ranks tell each other beside the gradients
names        whether all ranks have the same parameters
adapter      what a framework does for the exchange
compressing  compresses gradients, and remembers what that takes away

Without an exchange, for optimizers whose ranks make steps at their own pace:

meetings       adds up how far ranks have moved
meeting_ranks  the rounds of that
"""
