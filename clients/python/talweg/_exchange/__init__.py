# SPDX-License-Identifier: Apache-2.0
"""The exchange of one optimizer's gradients, for every framework.

exchange  when each gradient leaves, and whose averages count
states    the states of the exchange, and its transitions
adapter   what a framework does for the exchange
"""
