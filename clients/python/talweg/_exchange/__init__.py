# SPDX-License-Identifier: Apache-2.0
"""The exchange of one optimizer's gradients, for every framework.

exchange  when each gradient leaves, and whose averages count
states    its states, and what leads from one to the other
adapter   what a framework does for it
"""
